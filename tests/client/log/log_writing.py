"""Writes small logs for tests: records and manifests as bytes in files, without the trainer's writer."""

from pathlib import Path

import numpy as np

from springtide_client.format.checksums import encode_checksummed_json
from springtide_client.format.records import Head, VersionMeta
from springtide_client.log.listing import LogManifest, SealedSegment, claim_name, manifest_name, segment_name
from tests.support.records import encode_record


class LogOnDisk:
    """One epoch after the other, one record after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epoch, self.count, self.segment = 0, 0, 0
        self.head = Head(1 << 32, 1 << 32)
        self.sealed: list[SealedSegment] = []

    def claim(self) -> None:
        self.epoch += 1
        (self.path / claim_name(self.epoch)).touch()

    def seal(self) -> None:
        """Publish the manifest of the claimed epoch; of the files before, what is in `sealed` counts."""
        manifest = LogManifest(
            epoch=self.epoch, sealed=list(self.sealed), base=None, head=self.head, schema={}, fingerprint=""
        )
        (self.path / manifest_name(self.epoch)).write_bytes(encode_checksummed_json(manifest))
        self.count, self.segment = 0, 0

    def start(self) -> None:
        self.claim()
        self.seal()

    @property
    def file(self) -> Path:
        return self.path / segment_name(self.epoch, self.segment)

    def frame(self, parent: Head | None = None, num_rows: int = 3) -> tuple[bytes, Head]:
        self.count += 1
        number = (self.epoch << 32) + self.count
        tensors = {"rows.id": np.arange(num_rows, dtype=np.int64)}
        data, checksum = encode_record(
            self.epoch, number, (parent or self.head).checksum, VersionMeta(step=self.count), tensors
        )
        return data, Head(number, checksum)

    def append(self) -> Head:
        data, self.head = self.frame()
        with self.file.open("ab") as file:
            file.write(data)
        return self.head

    def seal_now(self) -> None:
        """Note that the present file counts as far as it goes."""
        self.sealed.append(SealedSegment(self.file.name, self.file.stat().st_size))
