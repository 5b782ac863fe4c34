"""Check what versions say: each against itself and against the version before it."""

from collections.abc import Sequence

import numpy as np

from springtide.app.version_log.tables import LogTable, tables_of
from springtide.app.version_log.verify.report import VerifyReport
from springtide_client.format.records import Record, VersionMeta, version_name
from springtide_client.format.tensors import Array, Arrays
from springtide_client.keys import SHARED_ROW_OFFSET, mix_keys
from springtide_client.log.base import BaseManifest
from springtide_client.log.listing import LogManifest, begins_epoch

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
            self._report.error(file, offset, f"version {record.tip}: {what}", consequence)
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
        for number, cutoff in before.expiry_cutoffs.items():
            if meta.expiry_cutoffs.get(number, cutoff - 1) < cutoff:
                wrong.append(f"the expiry cutoff of feature {number} went back: expired rows would return")
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
                self._report.note(f"version {record.tip}: {what}, at the start of a trainer", file, offset)
            else:
                consequence = "followers read on; samples in between are learned twice"
                self._report.error(file, offset, f"version {record.tip}: {what}", consequence)

    def _check_tensors(self, tensors: Arrays, meta: VersionMeta) -> list[str]:
        wrong = []
        groups = {**GROUPS, **{table.record_tensor("rows"): _columns_of(table) for table in self._tables}}
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
        order = np.lexsort((features, mix_keys(features, ids)))
        twice = (features[order[1:]] == features[order[:-1]]) & (ids[order[1:]] == ids[order[:-1]])
        return [f"{group} name a key twice"] if bool(twice.any()) else []


def _columns_of(table: LogTable) -> tuple[str, ...]:
    has_states = not table.name or table.spec.state_width
    return GROUPS["rows"] if has_states else tuple(name for name in GROUPS["rows"] if name != "state")


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
