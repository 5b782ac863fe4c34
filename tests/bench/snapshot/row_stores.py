"""Save and load rows with optimizer state: our log, and libraries that save arrays; a save ends with an fsync."""

# N rows, D dimension, S width of the optimizer state, K keys asked for
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from springtide.app.training.state.spill_gc import BaseRows
from springtide.app.training.state.version_tensors import delta_to_arrays
from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.app.version_log.compact.merge import CHUNK_ROWS
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.write.writer import LogWriter
from springtide.embeddings.config import TableConfig
from springtide.embeddings.rows import TableDelta
from springtide.embeddings.table import EmbeddingTable
from springtide_client.format.records import Head, VersionMeta
from springtide_client.log.base import Base, ModelIdentity, TableSpec
from springtide_client.log.directory import LogDirectory
from springtide_client.rows.row_block import RowBlock
from springtide_client.schema import Schema
from tests.bench.harness.report import fail
from tests.support.layers import sorted_layer

DIM = 64
SCHEMA = Schema(labels=("click",), categorical=("item_id",))
OPTIMIZER = {"name": "rowwise-adagrad", "lr": 0.05}
STATE_WIDTH = 1


@dataclass(frozen=True)
class RowSet:
    """Rows in the order of their key hashes."""

    ids_N: Any
    values_ND: Any
    states_NS: Any
    layer: RowBlock

    @staticmethod
    def draw(num_rows: int) -> "RowSet":
        """Return random rows, the same at each call."""
        random = np.random.default_rng(0)
        values_ND = random.standard_normal((num_rows, DIM), np.float32)
        states_NS = random.random((num_rows, STATE_WIDTH), np.float32)
        ids_N, ones_N = random.permutation(num_rows) * 1_000_003, np.ones(num_rows, np.int64)
        layer = sorted_layer(np.zeros(num_rows, np.uint16), ids_N, values_ND, ones_N, ones_N * 1000, states_NS)
        return RowSet(layer.id, layer.value, layer.state, layer)

    @property
    def num_bytes(self) -> int:
        return int(self.ids_N.nbytes + self.values_ND.nbytes + self.states_NS.nbytes)

    def arrays(self) -> dict[str, Any]:
        return {"ids": self.ids_N, "values": self.values_ND, "states": self.states_NS}

    def write_raw(self, path: Path) -> None:
        """Write the bytes alone: the limit of the disk."""
        with path.open("wb", buffering=0) as file:
            for array in self.arrays().values():
                view = memoryview(array).cast("B")
                while len(view):
                    view = view[os.write(file.fileno(), view) :]
            os.fsync(file.fileno())


class RowFiles(Protocol):
    """Files with all of the rows."""

    def save(self, rows: RowSet) -> None:
        """Write new files; they are on the disk when this returns."""
        ...

    def load(self, ids_K: Any, at_K: Any) -> Any:
        """Return the values of some rows, float32 (K, D); `at_K`: their positions, for formats without an index."""
        ...


class SpringtideLog:
    """A base as the compactor writes it; a delta as the trainer does, from a table with all the rows."""

    def __init__(self, folder: Path, rows: RowSet) -> None:
        self.directory = LogDirectory(folder)
        self.log = LogWriter.open(LogConfig(path=folder, durable_seconds=3600.0), schema=SCHEMA)
        self._number = self.log.first_base_head.number - 1
        config = TableConfig(dim=DIM, optimizer=OPTIMIZER, device_bytes=max(1 << 24, len(rows.ids_N) * 600))
        self.table = EmbeddingTable(config, seed=0)
        self.ids_N = rows.ids_N
        self.table.restore(TableDelta(rows.layer))

    def __enter__(self) -> "SpringtideLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()
        self.table.close()

    def save(self, rows: RowSet) -> None:
        """Write the next base after deleting the previous one, as the other formats truncate their files."""
        for old in self.directory.bases():
            shutil.rmtree(old)
        first = self._number < self.log.first_base_head.number
        self._number += 1
        head = self.log.first_base_head if first else Head(self._number, self._number)
        write_base(self.directory.path, image_of(head, rows.layer))
        if first:
            self.log.start_after(head)

    def load(self, ids_K: Any, at_K: Any) -> Any:
        base = Base.open(self.directory.bases()[-1])
        return BaseRows(base).find(np.zeros(len(ids_K), np.uint16), ids_K).rows.value

    def verify(self) -> None:
        """Check every file's checksum."""
        Base.open(self.directory.bases()[-1]).verify()

    def touch(self, num_rows: int, *, seed: int) -> None:
        """Learn a batch of `num_rows` rows."""
        ids_K = np.random.default_rng(seed).choice(self.ids_N, num_rows, replace=False)
        lookup = self.table.lookup(np.zeros(num_rows, np.uint16), ids_K, np.full(num_rows, 2000))
        self.table.update(lookup, np.full((num_rows, DIM), 0.01, np.float32))

    def append(self) -> None:
        """1. Take the delta. 2. Append it. 3. fsync."""
        self.log.append_owned(VersionMeta(), delta_to_arrays(self.table.take_delta()))
        self.log.sync()

    def check_delta(self) -> None:
        """Check that a version holds the table's rows."""
        self.touch(1000, seed=99)
        self.append()
        assert self.log.start_head is not None
        *_, record = self.directory.records(self.log.start_head)
        tensors = record.tensors()
        now_ND, _ = self.table.find(tensors["rows.feature"], tensors["rows.id"])
        if len(now_ND) != 1000 or not np.array_equal(now_ND, tensors["rows.value"]):
            fail("the rows of a delta")


def image_of(head: Head, layer: RowBlock) -> BaseImage:
    """Return a base of these rows, in blocks as the compactor writes it."""
    spec = TableSpec(dim=DIM, state_width=STATE_WIDTH, seed=0, init_scale=0.05, optimizer=dict(OPTIMIZER))
    blocks = (layer.take(slice(at, at + CHUNK_ROWS)) for at in range(0, len(layer), CHUNK_ROWS))
    return BaseImage(
        head=head,
        schema=SCHEMA,
        table=TableImage(spec=spec, num_rows=len(layer), blocks=blocks),
        model=ModelIdentity(name="none", options={}),
        meta=VersionMeta(),
        dense={},
    )


class NumpyFiles:
    """np.save and np.load, one file per array, with fsync."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def save(self, rows: RowSet) -> None:
        for name, array in rows.arrays().items():
            with (self.folder / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())

    def load(self, ids_K: Any, at_K: Any) -> Any:
        del ids_K
        arrays = {name: np.load(self.folder / f"{name}.npy") for name in ("ids", "values", "states")}
        return arrays["values"][at_K]


class TorchFile:
    """torch.save with fsync, and torch.load."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = folder / "rows.pt"

    def save(self, rows: RowSet) -> None:
        with self.path.open("wb") as file:
            torch.save({name: torch.from_numpy(array) for name, array in rows.arrays().items()}, file)
            file.flush()
            os.fsync(file.fileno())

    def load(self, ids_K: Any, at_K: Any) -> Any:
        del ids_K
        return torch.load(self.path, weights_only=True)["values"].numpy()[at_K]


class SafetensorsFile:
    """safetensors' save_file with fsync, and load_file."""

    def __init__(self, folder: Path) -> None:
        import safetensors.numpy

        self.library: Any = safetensors.numpy
        folder.mkdir()
        self.path = folder / "rows.safetensors"

    def save(self, rows: RowSet) -> None:
        self.library.save_file(rows.arrays(), self.path)
        descriptor = os.open(self.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def load(self, ids_K: Any, at_K: Any) -> Any:
        del ids_K
        return self.library.load_file(self.path)["values"][at_K]


PEERS = {"np.save": NumpyFiles, "torch.save": TorchFile, "safetensors": SafetensorsFile}
