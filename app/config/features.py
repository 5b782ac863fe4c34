"""The settings of one feature: `[features.<name>]`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# what belongs to rows: of features that share rows only their owner has a say
ROW_KEYS = ("ttl_seconds", "quota_bytes", "admission")


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """How long a feature's rows live, how much memory they may take, who gets one; its lists' length and pooling."""

    ttl_seconds: float | None = None
    quota_bytes: int | None = None
    admission: Mapping[str, Any] | None = None
    max_length: int | None = None
    pooling: str | None = None

    def __post_init__(self) -> None:
        for key in self.admission or {}:
            if key != "min_count":
                raise ValueError(f"admission has an unknown key {key!r}: it takes min_count")

    @property
    def min_count(self) -> int | None:
        """How often an id must be seen before it gets a row; None: as `[table] admission` says."""
        return None if self.admission is None else self.admission.get("min_count")

    @property
    def row_keys(self) -> list[str]:
        """The keys set here that belong to rows."""
        return [key for key in ROW_KEYS if getattr(self, key) is not None]
