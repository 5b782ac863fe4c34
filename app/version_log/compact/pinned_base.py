"""A base exactly at a pinned version: written where the segments that the pin keeps take more than such a base."""

from springtide.app.version_log.compact.merge import MAX_REPLAYED_BYTES, write_merged_base
from springtide.app.version_log.compact.onnx import OnnxBuilder
from springtide.app.version_log.compact.retention import complete_bases
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.replay_state import ReplayState
from springtide.app.version_log.read.segments import size_of
from springtide.app.version_log.read.version_range import VersionRange
from springtide.app.version_log.retention.keep_rule import groups_of_equal_bases, num_bytes
from springtide.app.version_log.retention.pins import read_pins
from springtide_client.log.base import read_base_manifest
from springtide_client.log.directory import LogDirectory


def pinned_base_due(directory: LogDirectory, *, keep_bases: int) -> int | None:
    """Return a pinned version that should get a base of its own; None if there is none.

    Until then the base before it and the segments between are kept, which costs no work. The newest `keep_bases` bases
    keep their segments anyway.
    """
    pins, bases = read_pins(directory.path), [read_base_manifest(path) for path in complete_bases(directory)]
    if not pins or not bases:
        return None
    index, oldest_recent = LogIndex(directory), groups_of_equal_bases(bases)[-keep_bases:][0][0]
    sizes = {base.number: num_bytes(base) for base in bases}
    starts = {pin.version: index.runs.base_of(pin.version) for pin in pins}
    for version in sorted(starts, reverse=True):
        base = starts[version]
        if base not in sizes or base == version or version > oldest_recent or not is_exact(index, version, base):
            continue
        others = [(start, end) for end, start in starts.items() if start is not None and end != version]
        needed = {
            entry.frame.path
            for start, end in [*others, (oldest_recent, index.numbers[-1])]
            for entry in index.entries_between(start, end)
        }
        alone = {entry.frame.path for entry in index.entries_between(base, version)} - needed
        if sum(map(size_of, alone)) > sizes[base]:
            return version
    return None


def is_exact(index: LogIndex, version: int, base: int) -> bool:
    """Return True if records and base hold the exact state of the net: of a large one, only some versions have it."""
    return 0 <= index.meta(version).exact_state <= base


def write_pinned_base(
    directory: LogDirectory,
    version: int,
    *,
    window_samples: int,
    onnx: OnnxBuilder | None = None,
    base_files: int = 0,
) -> None:
    """Write the base of a version that can be rebuilt, or one on the way there if there is much to replay.

    LogError if the log cannot be read up to it.
    """
    index = LogIndex(directory)
    base = index.base_before(version)
    base.verify(exports=False)  # the new base gets new checksums of the others
    state = ReplayState(base, window_samples=window_samples)
    for record in VersionRange(index, base.tip.number, version).records():
        state.apply(record)
        if state.num_bytes >= MAX_REPLAYED_BYTES:
            break
    write_merged_base(directory.path, base, state, onnx, base_files=base_files)
