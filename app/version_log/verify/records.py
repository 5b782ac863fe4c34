"""Check every record of the log and those before its bases: checksums, parents, numbers, seals, and contents."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from springtide.app.version_log.tables import LogTable, tables_of
from springtide.app.version_log.verify.inventory import LogInventory
from springtide.app.version_log.verify.report import VerifyReport, plural
from springtide_client.errors import CorruptRecordError, LogError
from springtide_client.format.records import Head, Record, RecordHeader, VersionMeta, version_name
from springtide_client.format.tensors import Array, Arrays
from springtide_client.keys import SHARED_ROW_OFFSET, hash_keys
from springtide_client.log.base import BaseManifest
from springtide_client.log.frames import Frame, frames_of
from springtide_client.log.listing import LogManifest, begins_epoch, segment_name
from springtide_client.log.shard_files import ShardFiles

GROUPS = {
    "rows": ("feature", "id", "value", "state", "count", "last_seen"),
    "forgotten": ("feature", "id"),
    "texts": ("feature", "id"),
    "sketch": ("block", "bytes"),
}


class SemanticCheck:
    """Checks the versions of a log one after the other."""

    def __init__(self, manifest: LogManifest, bases: Sequence[BaseManifest], report: VerifyReport) -> None:
        """`bases`: oldest first; each says which schema and table the versions after it have."""
        self._manifest, self._report = manifest, report
        self._bases = list(bases)
        self._fingerprint: str | None = manifest.fingerprint
        self._numbers: list[int] | None = list(manifest.decode_schema().row_names())
        self._tables: tuple[LogTable, ...] = ()
        if self._bases:  # of what the versions before the oldest base had, nothing is left
            self._fingerprint = self._numbers = None
        self._before: VersionMeta | None = None
        self._epoch = 0
        self.durable = 0  # the newest version that a checked version calls durable

    def check(self, record: Record, file: str, offset: int, consequence: str) -> None:
        """Check the next version, whose checksum and parent are right; LogError if it cannot be decoded."""
        meta = record.meta
        while self._bases and self._bases[0].number < record.number:
            self._enter(self._bases.pop(0))
        wrong = [*self._check_tensors(record.tensors(), meta), *self._check_meta(record, meta)]
        if self._before is not None:
            wrong += self._check_monotonic(meta, self._before)
            self._report_jumps(record, meta, self._before, file, offset)
        for what in wrong:
            self._report.error(file, offset, f"version {record.head}: {what}", consequence)
        self._before, self._epoch, self.durable = meta, record.epoch, max(self.durable, meta.durable)

    def _enter(self, base: BaseManifest) -> None:
        """Check what follows against the schema and the table of this base."""
        schema = base.decode_schema()
        self._fingerprint, self._numbers = schema.fingerprint(), list(schema.row_names())
        self._tables = tables_of(base)
        if begins_epoch(base.number):
            self._before = None  # rows and stream go on as the base says, not as the version before it

    def _check_meta(self, record: Record, meta: VersionMeta) -> list[str]:
        wrong = []
        if self._fingerprint is not None and meta.fingerprint != self._fingerprint:
            wrong.append(f"it was written with another schema ({meta.fingerprint or 'none'})")
        if meta.durable >= record.number:
            wrong.append(f"it calls version {version_name(meta.durable)} durable, which comes after it")
        return wrong

    def _check_monotonic(self, meta: VersionMeta, before: VersionMeta) -> list[str]:
        """Check what may never go back."""
        wrong = []
        if meta.durable < before.durable:
            wrong.append("fewer versions are durable than at the version before")
        for feature, cutoff in before.expiry_cutoffs.items():
            if meta.expiry_cutoffs.get(feature, cutoff - 1) < cutoff:
                wrong.append(f"the expiry cutoff of feature {feature} went back: expired rows would return")
        return wrong

    def _report_jumps(self, record: Record, meta: VersionMeta, before: VersionMeta, file: str, offset: int) -> None:
        """Report what may go back only in a rollback, or when a trainer starts at another stream position."""
        if meta.restores:
            return
        jumps = []
        if meta.samples_trained < before.samples_trained:
            jumps.append(f"samples went back from {before.samples_trained:,} to {meta.samples_trained:,}")
        for partition, position in before.positions.items():
            now = meta.positions.get(partition)
            if now is None:
                jumps.append(f"the position of {partition} is missing")
            elif now["topic_id"] == position["topic_id"] and now["offset"] < position["offset"]:
                jumps.append(f"{partition} went back from {position['offset']:,} to {now['offset']:,}")
        for what in jumps:
            if record.epoch != self._epoch:
                self._report.note(f"version {record.head}: {what}, at the start of a trainer", file, offset)
            else:
                consequence = "followers read on; samples in between are learned twice"
                self._report.error(file, offset, f"version {record.head}: {what}", consequence)

    def _check_tensors(self, tensors: Arrays, meta: VersionMeta) -> list[str]:
        wrong = []
        groups = {**GROUPS, **{table.record_tensor("rows"): table.record_columns for table in self._tables}}
        for group, columns in groups.items():
            present = [f"{group}.{column}" for column in columns if f"{group}.{column}" in tensors]
            if present and len(present) < len(columns):
                wrong.append(f"{group} lack a column: only {', '.join(present)}")
            elif len({len(tensors[name]) for name in present}) > 1:
                wrong.append(f"the columns of {group} have different lengths")
            elif present and "feature" in columns:
                wrong += self._check_keys(tensors, group)
        if wrong:
            return wrong
        if self._tables:
            wrong += [what for table in self._tables for what in _check_table(table, tensors)]
            names = [table.name for table in self._tables]
            strange = {name.rpartition("/")[0] for name in tensors if "/rows." in name}.difference(names)
            wrong += [f"rows of a table {name!r} that its base does not have" for name in sorted(strange)]
        if "texts.id" in tensors and not _fit(tensors["texts.offsets"], tensors["texts.bytes"], tensors["texts.id"]):
            wrong.append("id strings and their offsets do not match")
        if len(tensors.get("sketch.block", ())) and int(tensors["sketch.block"].max()) >= meta.sketch_blocks:
            wrong.append(f"a sketch block beyond its {meta.sketch_blocks} blocks")
        return wrong

    def _check_keys(self, tensors: Arrays, group: str) -> list[str]:
        features, ids = tensors[f"{group}.feature"], tensors[f"{group}.id"]
        if self._numbers is not None and not np.isin(features % SHARED_ROW_OFFSET, self._numbers).all():
            return [f"{group} of a feature that is not in the schema"]
        if group == "texts":
            return []  # several batches may bring the same string
        order = np.lexsort((features, hash_keys(features, ids)))
        twice = (features[order[1:]] == features[order[:-1]]) & (ids[order[1:]] == ids[order[:-1]])
        return [f"{group} name a key twice"] if bool(twice.any()) else []


def _check_table(table: LogTable, tensors: Arrays) -> list[str]:
    """Check the widths of a table's rows, and that it holds their features."""
    group = table.record_tensor("rows")
    if f"{group}.id" not in tensors:
        return []
    where = "" if not table.name else f" {table.name}"
    state = tensors.get(f"{group}.state")
    widths = tensors[f"{group}.value"].shape[1:], (0,) if state is None else state.shape[1:]
    wrong = []
    if widths != ((table.spec.dim,), (table.spec.state_width,)):
        wrong.append(f"rows of width {widths} in a table{where} of {table.spec.dim} and {table.spec.state_width}")
    if not table.holds(tensors[f"{group}.feature"]).all():
        wrong.append(f"rows of a feature that the {table.title} table does not hold")
    return wrong


def _fit(offsets: Array, content: Array, ids: Array) -> bool:
    if len(offsets) != len(ids) + 1 or offsets[0] != 0 or offsets[-1] != len(content):
        return False
    return bool((np.diff(offsets) >= 0).all())


@dataclass
class EpochCoverage:
    """How much of one epoch was checked."""

    num_files: int = 0
    num_versions: int = 0
    num_bytes: int = 0
    first: int = 0
    last: int = 0
    kernels: set[str] = field(default_factory=set)  # the levels of CPU that they were compiled for, of all versions

    @property
    def kernels_text(self) -> str:
        """The end of what is reported."""
        return f", learned with kernels for {' and '.join(sorted(self.kernels))}" if self.kernels else ""


@dataclass
class RecordCheck:
    """Checks the segments in order. `bases`: the manifests that can be read, oldest first."""

    inventory: LogInventory
    manifest: LogManifest
    bases: list[BaseManifest]
    report: VerifyReport
    # after and up to which versions the records must be there; others may have been deleted by retention
    needed: tuple[tuple[int, int], ...] = ((0, 2**63 - 1),)
    head: Head | None = None  # the newest record so far; None before the first
    coverage: dict[int, EpochCoverage] = field(default_factory=dict)
    _at: tuple[str, int] = ("", 0)  # the end of the last record

    def __post_init__(self) -> None:
        self._semantics = SemanticCheck(self.manifest, self.bases, self.report)
        self._expected_heads = {base.number: base.head for base in self.bases if not begins_epoch(base.number)}
        self._first = 2**63  # the lowest number so far
        self._shards = ShardFiles(self.inventory.path)
        sealed = self.manifest.head
        oldest = self.bases[0].number if self.bases else 2**63
        if sealed is not None and sealed.number > oldest and not begins_epoch(sealed.number):
            self._expected_heads[sealed.number] = sealed

    def run(self) -> Head | None:
        """Check everything from the oldest record to the end of the log; return the end."""
        num_wrong = len(self.report.errors)
        own = self.inventory.listing.segments.get(self.manifest.epoch, [])
        files: list[tuple[str, int | None]] = [(sealed.file, sealed.bytes) for sealed in self.manifest.sealed]
        files += [(name, None) for name in own]
        for name, limit in files:
            if name in self.inventory.sizes:
                self._check_file(name, limit)
        self._check_end(is_sound=len(self.report.errors) == num_wrong)
        for epoch, counted in self.coverage.items():
            sealed = ", sealed" if epoch < self.manifest.epoch else ""
            self.report.ok(
                f"epoch {epoch}: {plural(counted.num_versions, 'version')}, {version_name(counted.first)} to "
                f"{version_name(counted.last)}, {counted.num_bytes:,} bytes in "
                f"{plural(counted.num_files, 'file')}{sealed}{counted.kernels_text}"
            )
        self._report_ignored({name for name, _ in files})
        return self.head

    def consequence(self, version: int) -> str:
        """Say what follows for readers if a version cannot be read."""
        newest = self.bases[-1].number if self.bases else 0
        if not self.bases:
            return "there is no base to start from: the log cannot be followed"
        if version <= newest:
            return (
                f"followers start at base {version_name(newest)}, after it; versions before that base cannot be rebuilt"
            )
        before = self.head if self.head is not None and self.head.number > newest else version_name(newest)
        return (
            f"followers stop at version {before}, and the next trainer continues from there: later versions are lost; "
            "restore the file from a copy"
        )

    def _check_file(self, name: str, limit: int | None) -> None:
        size, offset = self.inventory.sizes[name], 0
        end = size if limit is None else min(size, limit)
        counted = self.coverage.setdefault(int(name[4:14]), EpochCoverage())
        counted.num_files += 1
        path, damage = self.inventory.path / name, ""
        with path.open("rb") as file:
            try:
                for frame in frames_of(file.fileno(), path, end):
                    self._check_record(frame, file.fileno())
                    offset, version = frame.end, frame.header.number
                    counted.num_versions, counted.last = counted.num_versions + 1, version
                    counted.first = counted.first or version
                    counted.num_bytes += frame.num_bytes
                    self._at = (name, offset)
            except CorruptRecordError as error:
                damage = str(error)
        self._check_rest(name, offset, size, limit, damage)

    def _check_rest(self, name: str, offset: int, size: int, limit: int | None, damage: str) -> None:
        """Report what a file holds behind its last whole record, from `offset` on; `damage`: why that is no record."""
        consequence = self.consequence(self.head.number + 1 if self.head else 0)
        rest, is_cut = (size if limit is None else min(size, limit)) - offset, limit is not None and size < limit
        if damage:
            self.report.error(name, offset, f"{damage}, so {rest:,} bytes from there on cannot be read", consequence)
        elif rest and not is_cut and limit is not None:
            self.report.error(name, offset, "the seal is in the middle of a record", consequence)
        elif rest and not is_cut:
            what = f"{rest:,} bytes of an incomplete record: being written, or left by a killed trainer"
            self.report.note(what, name, offset)
        if limit is not None and size < limit:
            what = f"it was sealed at {limit:,} bytes, but has only {size:,}"
            self.report.error(name, size, what, consequence)
        elif limit is not None and size > limit:
            self.report.note(f"{size - limit:,} bytes after the seal, which readers ignore", name, limit)

    def _check_record(self, frame: Frame, descriptor: int) -> None:
        name, head, header, offset = frame.path.name, self.head, frame.header, frame.offset
        try:
            record, damage = frame.read(descriptor), ""
        except CorruptRecordError as error:
            damage = str(error)
        linked = self._link(name, offset, header)
        if damage:
            self.report.error(name, offset, damage, self.consequence(header.number))
        elif linked:
            try:
                if (whole := self._whole(record, name, offset)) is not None:
                    if kernels := whole.meta.trainer.get("kernels"):
                        self.coverage[header.epoch].kernels.add(str(kernels))
                    self._semantics.check(whole, name, offset, self.consequence(header.number))
            except LogError as error:
                self.report.error(name, offset, str(error), self.consequence(header.number))
        self._first = min(self._first, header.number)
        if head is None or header.number > head.number:
            self.head = header.head

    def _whole(self, record: Record, name: str, offset: int) -> Record | None:
        """Return a version with its shard records; None if one is missing. LogError if one is damaged."""
        whole = self._shards.complete(record)
        if whole is None and self._is_needed(record.number):
            what = f"version {version_name(record.number)} lists a shard record that is missing"
            self.report.error(name, offset, what, self.consequence(record.number))
        return whole

    def _link(self, name: str, offset: int, header: RecordHeader) -> bool:
        """Return True if the record follows the one before it; also check it against the bases and the seal."""
        version, head = version_name(header.number), self._before(header)
        wrong = ""
        if not header.epoch == header.number >> 32 == int(name[4:14]):
            wrong = f"version {version} of epoch {header.epoch} is in a file of epoch {int(name[4:14])}"
        elif head is not None and header.number <= head.number:
            wrong = f"version {version} comes after version {head}: numbers must grow"
        elif head is not None and header.parent != head.checksum and self._may_be_gap(offset, header, head):
            what = f"the versions between {version_name(head.number)} and {version} were deleted by retention"
            self.report.note(what, name, offset)
        elif head is not None and header.parent != head.checksum:
            wrong = f"version {version} does not follow version {head}: records are missing or swapped"
            wrong += self._missing_before(name) if not offset else ""
        if wrong:
            # readers that start at the newest base do not need what is missing before it
            newest = self.bases[-1] if self.bases else None
            is_covered = newest is not None and newest.number < header.number and newest.checksum == header.parent
            missing = newest.number if newest is not None and is_covered else header.number
            self.report.error(name, offset, wrong, self.consequence(missing))
        base = self._expected_heads.pop(header.number, None)
        if base is not None and base != header.head:
            what = f"version {version} is not the one that a base or the seal names"
            self.report.error(name, offset, what, self.consequence(header.number))
        return not wrong

    def _before(self, header: RecordHeader) -> Head | None:
        """Return what the record must follow: the record before it, the oldest base if it comes right after, or a base
        with which an epoch began."""
        oldest = self.bases[0].head if self.bases else None
        if self.head is None and oldest is not None and header.number > oldest.number:
            self._expected_heads.pop(oldest.number, None)
            self.head = oldest
        last = 0 if self.head is None else self.head.number
        for base in self.bases:
            if begins_epoch(base.number) and last < base.number < header.number:
                self.head = base.head
        return self.head

    def _may_be_gap(self, offset: int, header: RecordHeader, head: Head) -> bool:
        """Return True if a segment begins after versions that nothing needs, neither a pin nor a recent base."""
        if offset or any(head.number < end < header.number for _, end in self.needed):
            return False
        starts = {base.checksum for base in self.bases}
        return header.parent in starts or not self._is_needed(header.number)

    def _is_needed(self, version: int) -> bool:
        return any(after < version <= end for after, end in self.needed)

    def _missing_before(self, name: str) -> str:
        sealed = [sealed.file for sealed in self.manifest.sealed]
        epoch, count = int(name[4:14]), int(name[15:21])
        before = sealed[: sealed.index(name)] if name in sealed else sealed
        if name not in sealed and count:
            before = [segment_name(epoch, count - 1)]
        return f" ({before[-1]} is missing)" if before and before[-1] not in self.inventory.sizes else ""

    def _check_end(self, *, is_sound: bool) -> None:
        """Report versions that must exist and do not. `is_sound`: no error was reported up to the end of the log."""
        oldest = self.bases[0].number if self.bases else 0
        begins = [base.number for base in self.bases if begins_epoch(base.number)]
        last = max(self.head.number if self.head else 0, oldest, *begins)
        for version in sorted(self._expected_heads):
            is_missing = is_sound and (version > oldest or self._first < oldest)
            if version > last or (is_missing and (self._is_needed(version) or version == oldest)):
                what = f"version {version_name(version)}, which a base or the seal names, is not among the records"
                self.report.error(*self._end(), what, self.consequence(version))
        durable = max(self._semantics.durable, self.inventory.durable)
        if durable > last:
            what = f"the log ends at version {version_name(last)}, but {version_name(durable)} was durable"
            self.report.error(*self._end(), what, self.consequence(durable))

    def _end(self) -> tuple[str, int | None]:
        if self._at[0]:
            return self._at
        names = [sealed.file for sealed in self.manifest.sealed] or [segment_name(self.manifest.epoch, 0)]
        return names[-1], None

    def _report_ignored(self, readable: set[str]) -> None:
        for epoch, names in self.inventory.listing.segments.items():
            for name in names:
                if epoch < self.manifest.epoch and name not in readable:
                    what = "no manifest lists it, so readers ignore it: left by a replaced trainer"
                    self.report.note(f"{what}, the next compaction deletes it", name)
