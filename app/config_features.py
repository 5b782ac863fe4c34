"""The settings of one feature: `[features.<name>]`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """How long a feature's rows live, how much they may take, who gets one, how long its lists may be."""

    ttl_seconds: float | None = None
    quota_bytes: int | None = None
    admission: Mapping[str, Any] | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.ttl_seconds is not None and not self.ttl_seconds > 0:
            raise ValueError(f"ttl_seconds must be above 0, not {self.ttl_seconds}")

    @property
    def not_acted_on(self) -> list[str]:
        """Settings that are read and checked, and that nothing obeys in this release."""
        return [name for name in ("ttl_seconds", "quota_bytes", "admission") if getattr(self, name) is not None]
