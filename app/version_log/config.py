"""The keys of `[log]`."""

from dataclasses import dataclass
from pathlib import Path

SMALLEST_BYTES = 1 << 16  # of a log, a segment, a queue


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Where the log is, how often versions are cut and synced, when bases are made, and how much disk it may take."""

    path: Path
    publish_seconds: float = 0.5
    durable_seconds: float = 1.0
    base_minutes: float = 10.0
    keep_bases: int = 2
    onnx: bool = True  # whether bases that are merged hold model.onnx, where the extra is installed
    log_bytes: int = 20 << 30
    segment_bytes: int = 64 << 20
    queue_bytes: int = 64 << 20  # versions on their way to the disk; a full queue slows the stream

    def __post_init__(self) -> None:
        for name in ("publish_seconds", "durable_seconds", "base_minutes"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"[log] {name} must be more than 0 and finite, not {getattr(self, name)}")
        if self.keep_bases < 1:
            raise ValueError(f"[log] keep_bases must be at least 1, not {self.keep_bases}")
        for name in ("log_bytes", "segment_bytes", "queue_bytes"):
            if getattr(self, name) < SMALLEST_BYTES:
                raise ValueError(f"[log] {name} must be at least 64KiB, not {getattr(self, name)}")
