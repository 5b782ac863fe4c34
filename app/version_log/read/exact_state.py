"""The exact state of the dense net at one version, in a folder of its own beside the log: what a restart needs.

A version whose net is large does not carry it: it is written meanwhile, and the version is exact once its folder is
complete. The folder names the version by its checksum, so the state of a version that the log lost is never used.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from springtide.app.version_log.kept_versions import read_pins, retention_lock
from springtide.app.version_log.read.index_entry import IndexEntry
from springtide_client.errors import LogError
from springtide_client.format.checksums import crc32_of_file, decode_checksummed_json
from springtide_client.format.records import NO_STATE, Head
from springtide_client.format.tensors import Arrays, map_tensors
from springtide_client.log.base import MANIFEST, STATE, Base, FileChecksum
from springtide_client.log.listing import state_name

T = TypeVar("T")

PARAMETERS, AVERAGE = "state.parameters.", "state.average."
RANDOM = "state.random"  # a version that has it carries all of the net's exact state


class StateManifest(msgspec.Struct, kw_only=True):
    """The manifest.json of an exact state."""

    number: int
    checksum: int  # of the version's record
    file: FileChecksum

    @property
    def head(self) -> Head:
        """The version whose state it is."""
        return Head(self.number, self.checksum)


def find_state(log_path: Path, head: Head, *, verify: bool = False) -> Path | None:
    """Return the file with the exact state at a version; None if there is none that is complete.

    `verify`: read it, and return None if it does not match its checksum.
    """
    folder = log_path / state_name(head.number)
    try:
        manifest = read_state_manifest(folder)
        file = folder / STATE
        if manifest.head != head or file.stat().st_size != manifest.file.bytes:
            return None
        return None if verify and crc32_of_file(file) != manifest.file.crc32 else file
    except (LogError, OSError):
        return None


def read_state_manifest(folder: Path) -> StateManifest:
    """Read the manifest of an exact state; LogError if it is damaged, OSError if it is gone."""
    return decode_checksummed_json((folder / MANIFEST).read_bytes(), StateManifest, str(folder / MANIFEST))


class ExactStates:
    """Says where the exact state at a version is, for the versions after one base."""

    def __init__(self, log_path: Path, base: Base, find: Callable[[int], IndexEntry | None]) -> None:
        """`find` returns the record of a version of the log."""
        self._log_path, self._base, self._find = log_path, base, find
        self._files: dict[int, Path | None] = {}

    def has(self, exact_state: int) -> bool:
        """Return True if a version whose meta says this about its exact state can be continued from."""
        if exact_state == NO_STATE:
            return False
        return exact_state == 0 or exact_state <= self._base.head.number or self.file(exact_state) is not None

    def file(self, version: int) -> Path | None:
        """Return the file with the exact state of a version, verified once."""
        if version not in self._files:
            entry = self._find(version)
            self._files[version] = None if entry is None else find_state(self._log_path, entry.head, verify=True)
        return self._files[version]

    def newest(self, versions: Sequence[IndexEntry] | Sequence[int]) -> int:
        """Return how many of these versions, which follow the base, are left if the last of them must be exact.

        They are given by their records, or by what their metas say of their exact states.
        """
        for count in range(len(versions), 0, -1):
            version = versions[count - 1]
            if self.has(version if isinstance(version, int) else version.read_summary().meta.exact_state):
                return count
        return 0


def exact_net(arrays: Arrays, file: Path | None) -> Arrays:
    """Return `dense.*` and `state.*` with the exact parameters under `dense.*`, as a version that carries them whole.

    `file`: with the exact state, if it is not among the arrays.
    """
    if file is not None:
        arrays = {name: array for name, array in arrays.items() if not is_exact_state(name)} | map_tensors(file)
    exact = {f"dense.{name.removeprefix(PARAMETERS)}": name for name in arrays if name.startswith(PARAMETERS)}
    others = {name: array for name, array in arrays.items() if not name.startswith(PARAMETERS)}
    return others | {name: arrays[source] for name, source in exact.items()}


def serve_averages(arrays: Arrays) -> Arrays:
    """Return what `exact_net` does with averages of parameters, if there are any, under `dense.*`, as followers get."""
    averages = {name.removeprefix(AVERAGE): array for name, array in arrays.items() if name.startswith(AVERAGE)}
    if not averages:
        return arrays
    trained = {name.removeprefix("dense."): array for name, array in arrays.items() if name.startswith("dense.")}
    served = {f"dense.{name}": array for name, array in averages.items()}
    return arrays | {f"{PARAMETERS}{name}": array for name, array in trained.items()} | served


def is_net(name: str) -> bool:
    """Return True for tensors of the dense net and its exact state."""
    return name.startswith("dense.") or is_exact_state(name)


def is_exact_state(name: str) -> bool:
    """Return True for tensors that only a trainer that continues from the version needs, of net and optimizer."""
    return name.startswith("state.") and not name.startswith("state.scores.")


def fold_net(older: Mapping[str, T], newer: Mapping[str, T], *, is_whole: bool) -> dict[str, T]:
    """Return the net as of a version, by the names of its tensors: what the version has over what came before it.

    `is_whole`: it is a rollback, which carries all of the net. A version with the random state carries all of the exact
    state: gathered gradients come and go. Scores and rows are left out.
    """
    if is_whole:
        older = {}
    elif RANDOM in newer:
        older = {name: array for name, array in older.items() if not is_exact_state(name)}
    return {**older, **{name: array for name, array in newer.items() if is_net(name)}}


def state_numbers(log_path: Path) -> list[int]:
    """Return the versions that have a folder with an exact state, ascending."""
    names = (path.name.removeprefix("state-") for path in log_path.glob("state-*"))
    return sorted(int(name) for name in names if name.isdecimal())


def remove_states(log_path: Path, before: int) -> None:
    """Delete the exact states of versions before this one, but the newest one at or before each pinned version.

    A base that has linked one keeps its file. While a version is being pinned nothing is deleted; the next call does.
    """
    numbers = [version for version in state_numbers(log_path) if version < before]
    if not numbers:
        return
    with retention_lock(log_path, wait_seconds=0.0) as is_held:
        if not is_held:
            return
        try:
            pins = [pin.version for pin in read_pins(log_path)]
        except LogError:
            return  # a pin that cannot be read may need any of them
        spared = {max((n for n in numbers if n <= version), default=0) for version in pins}
        for version in set(numbers) - spared:
            shutil.rmtree(log_path / state_name(version), ignore_errors=True)
