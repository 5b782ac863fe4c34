"""A table's settings: the keys of `[table]`, and per feature those of `[features.<name>]`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide_client.system.sizes import parse_size

from embeddings.optimizer import RowOptimizer

EVICTIONS = ("lru", "lfu", "custom")
DTYPES = ("float32", "bfloat16")
MAX_MIN_COUNT = 255  # what a counter of the admission sketch can hold


@dataclass(frozen=True, kw_only=True)
class FeaturePolicy:
    """What differs for one feature's rows; None: no limit, and the table's `min_count`."""

    ttl_seconds: float | None = None
    quota_bytes: int | str | None = None
    min_count: int | None = None

    def __post_init__(self) -> None:
        check_ttl(self.ttl_seconds)
        check_quota(self.quota_bytes)
        if self.min_count is not None:
            check_min_count(self.min_count)


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Which ids get a row: those seen at least `min_count` times, by a counting sketch of `sketch_bytes`.

    Its counts halve every `decay_every_samples` samples, so that an id must be asked for within a time, not ever.
    """

    min_count: int = 1
    sketch_bytes: int | str = "16MiB"
    decay_every_samples: int = 10_000_000

    def __post_init__(self) -> None:
        check_min_count(self.min_count)
        if parse_size(self.sketch_bytes) < 64:
            raise ValueError(f"admission sketch_bytes must be at least 64, not {self.sketch_bytes}")
        if self.decay_every_samples < 1:
            raise ValueError(f"admission decay_every_samples must be at least 1, not {self.decay_every_samples}")

    @staticmethod
    def of(options: Mapping[str, Any]) -> "Admission":
        """From the table of a config; ValueError names an unknown key."""
        unknown = set(options) - {"min_count", "sketch_bytes", "decay_every_samples"}
        if unknown:
            raise ValueError(
                f"admission does not know {sorted(unknown)}: it takes min_count, sketch_bytes, decay_every_samples"
            )
        return Admission(**options)


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
    dtype: str = "float32"  # of the values; optimizer state is float32
    init_scale: float = 0.05  # of a row's first value; pairs of smaller ones take long to grow apart
    num_threads: int = 1
    features: Mapping[int, FeaturePolicy] = field(default_factory=dict)  # by feature number

    def __post_init__(self) -> None:
        if not 1 <= self.dim <= 4096:
            raise ValueError(f"dim must be in 1..4096, not {self.dim}")
        for size in (self.device_bytes, self.host_bytes, self.disk_bytes):
            parse_size(size)
        if self.eviction not in EVICTIONS:
            raise ValueError(f"eviction must be one of {', '.join(EVICTIONS)}, not {self.eviction!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if not 0 <= self.init_scale < float("inf"):
            raise ValueError(f"init_scale must be finite and not negative, not {self.init_scale}")
        if not 1 <= self.num_threads <= 256:
            raise ValueError(f"num_threads must be in 1..256, not {self.num_threads}")
        Admission.of(self.admission)
        RowOptimizer.of(self.optimizer)


@dataclass(frozen=True, kw_only=True)
class TableLimits:
    """What may change while a table is in use; None and absent features: as it is. A feature's None lifts its limit."""

    device_bytes: int | str | None = None
    disk_bytes: int | str | None = None
    lr: float | None = None
    ttl_seconds: Mapping[int, float | None] = field(default_factory=dict)
    quota_bytes: Mapping[int, int | str | None] = field(default_factory=dict)
    min_count: Mapping[int, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for size in (self.device_bytes, self.disk_bytes):
            if size is not None:
                parse_size(size)
        if self.lr is not None and not 0 <= self.lr < float("inf"):
            raise ValueError(f"lr must be finite and not negative, not {self.lr}")
        for seconds in self.ttl_seconds.values():
            check_ttl(seconds)
        for quota in self.quota_bytes.values():
            check_quota(quota)
        for count in self.min_count.values():
            check_min_count(1 if count is None else count)


def check_ttl(seconds: float | None) -> None:
    if seconds is not None and not 0 < seconds < 1e12:
        raise ValueError(f"ttl_seconds must be above 0, not {seconds}")


def check_quota(quota: int | str | None) -> None:
    if quota is not None and parse_size(quota) < 1:
        raise ValueError(f"quota_bytes must be above 0, not {quota}")


def check_min_count(count: int) -> None:
    if not 1 <= count <= MAX_MIN_COUNT:
        raise ValueError(f"min_count must be in 1..{MAX_MIN_COUNT}, not {count}")
