"""A log by the real writer in which every version sets all its rows and its dense net to the same number."""

from pathlib import Path

import numpy as np

from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import apply_retention
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.records import Head, VersionMeta
from springtide_client.format.tensors import Arrays
from springtide_client.log.base import ModelIdentity, TableSpec
from tests.support.toy_model import DIM, TOY_SCHEMA, toy_archive

NUM_KEYS = 50
KEYS = np.zeros(NUM_KEYS, np.uint16), np.arange(NUM_KEYS)


def stamp_of(step: int) -> np.float32:
    """Return the dense net's number of a step: its only logit, so predictions are its sigmoid."""
    return np.float32(step % 10_000 / 10_000 * 8 - 4)


def version(step: int) -> Arrays:
    """Return the arrays of a step's version."""
    return {
        "rows.feature": KEYS[0],
        "rows.id": KEYS[1],
        "rows.value": np.full((NUM_KEYS, DIM), step, np.float32),
        "rows.state": np.zeros((NUM_KEYS, 1), np.float32),
        "rows.count": np.full(NUM_KEYS, step),
        "rows.last_seen": np.full(NUM_KEYS, step),
        "dense.linear.bias": np.full(2, stamp_of(step), np.float32),
        "dense.linear.weight": np.zeros((2, 18), np.float32),
    }


class StampedLog:
    """Appends one version per step; steps count from 1."""

    def __init__(self, path: Path, *, segment_bytes: int = 1 << 18) -> None:
        config = LogConfig(path=path, segment_bytes=segment_bytes, durable_seconds=0.02)
        self.writer, self.step = LogWriter.open(config, schema=TOY_SCHEMA), 0
        self.path, self.directory = path, self.writer.directory
        contents = BaseImage(
            head=self.writer.first_base_head,
            schema=TOY_SCHEMA,
            table=TableImage(spec=TableSpec(dim=DIM, state_width=1, seed=1, init_scale=0.01)),
            model=ModelIdentity(name="toy"),
            meta=VersionMeta(fingerprint=TOY_SCHEMA.fingerprint()),
            dense={"dense.linear.bias": np.zeros(2, np.float32)},
            program=toy_archive(),
        )
        write_base(path, contents)
        self.writer.start_after(self.writer.first_base_head)

    def append(self, number: int = 1) -> Head:
        """Append `number` versions; return the last one's head."""
        for _ in range(number):
            self.step += 1
            meta = VersionMeta(step=self.step, fingerprint=TOY_SCHEMA.fingerprint())
            head = self.writer.append(meta, version(self.step))
        return head

    def compact(self, keep_bases: int = 2) -> None:
        """Write a base of all versions so far, and delete the segments that it covers."""
        self.writer.sync()
        self.append()
        self.writer.sync()
        compact_log(self.directory, window_samples=5)
        apply_retention(self.directory, keep_bases)

    def segments(self) -> list[Path]:
        return sorted(self.path.glob("seg-*"))
