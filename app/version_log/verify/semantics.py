"""What a version says, against the version before it and against itself."""

import numpy as np
from springtide_client.format.records import Record, VersionMeta, version_name
from springtide_client.format.tensors import Array, Arrays
from springtide_client.keys import SHARED_ROW_OFFSET, mix_keys
from springtide_client.log.base import TableSpec
from springtide_client.log.directory import LogManifest

from app.version_log.verify.report import VerifyReport

GROUPS = {
    "rows": ("feature", "id", "value", "state", "count", "last_seen"),
    "forgotten": ("feature", "id"),
    "texts": ("feature", "id"),
    "sketch": ("block", "bytes"),
}


class SemanticCheck:
    """Sees the versions of a log one after the other."""

    def __init__(self, manifest: LogManifest, table: TableSpec | None, findings: VerifyReport) -> None:
        self._manifest, self._table, self._findings = manifest, table, findings
        self._num_features = len(manifest.decode_schema().features)
        self._before: VersionMeta | None = None
        self._epoch = 0
        self.durable = 0  # the newest version that any of them calls durable

    def check(self, record: Record, file: str, offset: int, reader: str) -> None:
        """One more version, verified and in its place; LogError where it cannot be decoded."""
        meta = record.meta
        wrong = [*self._of_tensors(record.tensors(), meta), *self._of_itself(record, meta)]
        if self._before is not None:
            wrong += self._of_order(meta, self._before)
            self._report_jumps(record, meta, self._before, file, offset)
        for what in wrong:
            self._findings.error(file, offset, f"version {record.tip}: {what}", reader)
        self._before, self._epoch, self.durable = meta, record.epoch, max(self.durable, meta.durable)

    def _of_itself(self, record: Record, meta: VersionMeta) -> list[str]:
        wrong = []
        if meta.fingerprint != self._manifest.fingerprint:
            wrong.append(f"it was written with another schema ({meta.fingerprint or 'none'})")
        if meta.durable >= record.number:
            wrong.append(f"it calls version {version_name(meta.durable)} durable, which comes after it")
        return wrong

    def _of_order(self, meta: VersionMeta, before: VersionMeta) -> list[str]:
        """What may never go back."""
        wrong = []
        if meta.durable < before.durable:
            wrong.append("fewer versions are durable than before")
        for number, horizon in before.expiry_cutoffs.items():
            if meta.expiry_cutoffs.get(number, horizon - 1) < horizon:
                wrong.append(f"the horizon of feature {number} went back: rows forgotten by rule would return")
        return wrong

    def _report_jumps(self, record: Record, meta: VersionMeta, before: VersionMeta, file: str, offset: int) -> None:
        """What may go back only with a rollback, or where a trainer starts elsewhere."""
        if meta.restores:
            return
        jumps = []
        if meta.samples_trained < before.samples_trained:
            jumps.append(f"samples went back from {before.samples_trained:,} to {meta.samples_trained:,}")
        for partition, position in before.positions.items():
            now = meta.positions.get(partition)
            if now is None:
                jumps.append(f"the position of {partition} is gone")
            elif now["topic_id"] == position["topic_id"] and now["offset"] < position["offset"]:
                jumps.append(f"{partition} went back from {position['offset']:,} to {now['offset']:,}")
        for what in jumps:
            if record.epoch != self._epoch:
                self._findings.note(f"version {record.tip}: {what}, at the start of a trainer", file, offset)
            else:
                reader = "followers go on; samples in between are learned twice"
                self._findings.error(file, offset, f"version {record.tip}: {what}", reader)

    def _of_tensors(self, tensors: Arrays, meta: VersionMeta) -> list[str]:
        wrong = []
        for group, columns in GROUPS.items():
            present = [f"{group}.{column}" for column in columns if f"{group}.{column}" in tensors]
            if present and len(present) < len(columns):
                wrong.append(f"{group} lack a column: {', '.join(present)} are there")
            elif len({len(tensors[name]) for name in present}) > 1:
                wrong.append(f"the columns of {group} have several lengths")
            elif present and "feature" in columns:
                wrong += self._of_keys(tensors, group)
        if wrong:
            return wrong
        if "rows.id" in tensors and self._table is not None:
            widths = tensors["rows.value"].shape[1:], tensors["rows.state"].shape[1:]
            if widths != ((self._table.dim,), (self._table.state_width,)):
                wrong.append(f"rows of width {widths}, in a table of {self._table.dim} and {self._table.state_width}")
        if "texts.id" in tensors and not _fit(tensors["texts.offsets"], tensors["texts.bytes"], tensors["texts.id"]):
            wrong.append("texts and their offsets do not fit")
        if len(tensors.get("sketch.block", ())) and int(tensors["sketch.block"].max()) >= meta.sketch_blocks:
            wrong.append(f"a block beyond the {meta.sketch_blocks} of its sketch")
        return wrong

    def _of_keys(self, tensors: Arrays, group: str) -> list[str]:
        features, ids = tensors[f"{group}.feature"], tensors[f"{group}.id"]
        if len(features) and int((features % SHARED_ROW_OFFSET).max()) >= self._num_features:
            return [f"{group} of a feature that is not in the schema"]
        if group == "texts":
            return []  # the same text may come from several batches
        order = np.lexsort((features, mix_keys(features, ids)))
        twice = (features[order[1:]] == features[order[:-1]]) & (ids[order[1:]] == ids[order[:-1]])
        return [f"{group} name a key twice"] if bool(twice.any()) else []


def _fit(offsets: Array, content: Array, ids: Array) -> bool:
    if len(offsets) != len(ids) + 1 or offsets[0] != 0 or offsets[-1] != len(content):
        return False
    return bool((np.diff(offsets) >= 0).all())
