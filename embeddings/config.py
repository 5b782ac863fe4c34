"""A table's settings: the keys of `[table]`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from embeddings.optimizer import RowOptimizer
from embeddings.sizes import num_bytes

SIDE_FRACTION = 16  # the side buffer takes at most this part of device_bytes


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """Sizes are integers or texts such as "1GiB"; `device_bytes` counts rows, index, overflow area and side buffer."""

    dim: int = 16
    device_bytes: int | str = "1GiB"
    host_bytes: int | str = 0
    disk_bytes: int | str = "100GiB"
    disk_path: str | None = None
    eviction: str = "lru"
    admission: Mapping[str, Any] = field(default_factory=lambda: {"min_count": 1})
    optimizer: Mapping[str, Any] = field(default_factory=lambda: {"name": "rowwise-adagrad", "lr": 0.05})
    init_scale: float = 0.05  # of a row's first value; pairs of smaller ones take long to grow apart
    num_threads: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.dim <= 4096:
            raise ValueError(f"dim must be in 1..4096, not {self.dim}")
        if num_bytes(self.host_bytes) != 0:
            raise ValueError(
                f"host_bytes is for GPUs: on the CPU raise device_bytes, and leave 0, not {self.host_bytes}"
            )
        num_bytes(self.device_bytes)
        num_bytes(self.disk_bytes)
        if self.eviction != "lru":
            raise ValueError(f"eviction must be 'lru', not {self.eviction!r}")
        if dict(self.admission) not in ({}, {"min_count": 1}):
            raise ValueError(f"admission must be {{ min_count = 1 }}, not {dict(self.admission)}")
        if not 0 <= self.init_scale < float("inf"):
            raise ValueError(f"init_scale must be finite and not negative, not {self.init_scale}")
        if not 1 <= self.num_threads <= 256:
            raise ValueError(f"num_threads must be in 1..256, not {self.num_threads}")
        RowOptimizer.of(self.optimizer)
