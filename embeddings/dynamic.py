"""DynamicEmbedding: the table as a torch module, for anyone's plain torch model, without a vocabulary."""

# K keys of one call, D dimension
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from springtide_client.first_values import first_values
from torch import nn

from embeddings.capacity import Capacity
from embeddings.config import TableConfig
from embeddings.errors import SpillError
from embeddings.optimizer import RowOptimizer
from embeddings.reading import KNOWN
from embeddings.rows import Rows, Touched
from embeddings.spill_rocksdb import RocksSpill
from embeddings.table import EmbeddingTable
from kernels.backend import backend

FEATURE = 0  # the one feature of a module's table
GENERATION = re.compile(r"\d{6}").fullmatch  # what a spill's folder holds


class DynamicEmbedding(nn.Module):
    """Ids of any shape in, rows out; gradients flow into the rows during backward, with the optimizer given here.

    A row is made when an id is first seen in training mode; under `eval()` or `no_grad` an unknown id takes the value
    it would be created with and nothing is created. Each forward's gradient is one optimizer step of its own. A torch
    optimizer knows nothing of the rows: they are no parameters.
    """

    def __init__(
        self,
        dim: int,
        capacity: int | str,
        *,
        optimizer: Mapping[str, Any] | None = None,
        eviction: str = "lru",
        admission: Mapping[str, Any] | None = None,
        spill: str | Path | None = None,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        init_scale: float = 0.01,
    ) -> None:
        """capacity: rows held in memory (an int, rounded up to a bucket) or bytes ("2GiB").

        spill: a folder of the object's own, emptied now; without it an evicted row is forgotten. ValueError for a
        setting that is none; SpillError where the folder or RocksDB fails.
        """
        super().__init__()
        if dtype is not torch.float32:
            raise ValueError(f"dtype must be torch.float32, not {dtype}")
        self.dim, self.seed, self.init_scale = dim, seed, init_scale
        self.config = TableConfig(
            dim=dim,
            device_bytes=capacity if isinstance(capacity, str) else "1GiB",
            eviction=eviction,
            admission=admission or {},
            optimizer=optimizer if optimizer is not None else {"name": "rowwise-adagrad", "lr": 0.05},
            init_scale=init_scale,
        )
        self.device_name = device
        self.capacity = (
            Capacity.of_bytes(self.config, backend(device), tracked=False)
            if isinstance(capacity, str)
            else Capacity.of_rows(capacity)
        )
        self.folder = Path(spill) if spill is not None else None
        self.num_unknown = 0  # ids that took a first value without a row
        self.table = self._new_table()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: integers of any shape; rows float32 (*ids.shape, dim)."""
        ids_K = _ids(ids)
        if not self.training or not torch.is_grad_enabled():
            rows_KD = self._read(ids_K)
        else:
            zeros_K = np.zeros(len(ids_K), np.int64)
            rows_KD = self.table.embed(self.table.lookup(zeros_K.astype(np.uint16), ids_K, zeros_K))
        return rows_KD.reshape(*ids.shape, self.dim)

    def lookup(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows, float32 (*ids.shape, dim), NaN where there is none, and status, uint8 ids.shape; creates nothing.

        0 known, 1 unknown, 2 not admitted, 3 forgotten.
        """
        ids_K = _ids(ids)
        rows_KD, status_K = self.table.find(np.full(len(ids_K), FEATURE, np.uint16), ids_K)
        return (
            torch.from_numpy(rows_KD).reshape(*ids.shape, self.dim),
            torch.from_numpy(status_K).reshape(ids.shape),
        )

    def forget(self, ids: torch.Tensor) -> None:
        """These ids have no row any more; one that returns is new."""
        ids_N = np.unique(_ids(ids))
        self.table.forget(np.full(len(ids_N), FEATURE, np.uint16), ids_N)

    def set_lr(self, lr: float) -> None:
        self.table.set_lr(lr)

    def __len__(self) -> int:
        """Rows in memory."""
        return self.table.rows_by_tier()["device"]

    def close(self) -> None:
        """Lets go of the spill; the object is of no more use."""
        self.table.close()

    def extra_repr(self) -> str:
        return f"dim={self.dim}, rows={self.capacity.num_slots}, spill={self.folder}, optimizer={self.table.optimizer}"

    def get_extra_state(self) -> dict[str, torch.Tensor]:
        """For state_dict: all rows with their optimizer state, the spilled ones too."""
        rows = self.table.export()
        return {
            "ids": torch.from_numpy(rows.ids),
            "values": torch.from_numpy(rows.values),
            "states": torch.from_numpy(rows.states),
            "counts": torch.from_numpy(rows.counts),
        }

    def set_extra_state(self, state: dict[str, torch.Tensor]) -> None:
        """For load_state_dict: the table begins anew with these rows."""
        if state["values"].shape[1:] != (self.dim,):
            raise ValueError(f"rows of shape {tuple(state['values'].shape[1:])} for a dim of {self.dim}")
        lr = self.table.lr
        self.table.close()
        self.table = self._new_table()
        self.table.set_lr(lr)
        ids_N = state["ids"].numpy()
        features_N, zeros_N = np.full(len(ids_N), FEATURE, np.uint16), np.zeros(len(ids_N), np.int64)
        rows = Rows(
            features_N, ids_N, state["values"].numpy(), state["states"].numpy(), state["counts"].numpy(), zeros_N
        )
        self.table.restore(Touched.of(rows))

    def _new_table(self) -> EmbeddingTable:
        state_width = RowOptimizer.of(self.config.optimizer).state_width(self.dim)
        rows_on_disk = None
        if self.folder is not None:
            _empty(self.folder)
            rows_on_disk = RocksSpill(self.folder, dim=self.dim, state_width=state_width)
        return EmbeddingTable(
            self.config,
            seed=self.seed,
            spill=rows_on_disk,
            capacity=self.capacity,
            tracked=False,
            device=self.device_name,
        )

    def _read(self, ids_K: Any) -> torch.Tensor:
        """Rows, and first values where there is none."""
        features_K = np.full(len(ids_K), FEATURE, np.uint16)
        rows_KD, status_K = self.table.find(features_K, ids_K)
        unknown = status_K != KNOWN
        if unknown.any():
            self.num_unknown += int(np.count_nonzero(unknown))
            rows_KD[unknown] = first_values(
                features_K[unknown], ids_K[unknown], dim=self.dim, seed=self.seed, scale=self.init_scale
            )
        return torch.from_numpy(rows_KD)


def _empty(folder: Path) -> None:
    """Removes a spill's folder; refuses one that holds anything else."""
    strange = [entry.name for entry in folder.iterdir() if not GENERATION(entry.name)] if folder.exists() else []
    if strange:
        raise SpillError(f"{folder} is no spill's folder, it holds {strange[0]!r}: name an empty or a new one")
    shutil.rmtree(folder, ignore_errors=True)


def _ids(ids: torch.Tensor) -> Any:
    if ids.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise ValueError(f"ids must be integers, not {ids.dtype}")
    return np.ascontiguousarray(ids.detach().to(torch.int64).numpy().reshape(-1))
