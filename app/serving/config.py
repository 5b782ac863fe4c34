"""The settings of one server."""

import ipaddress
from dataclasses import dataclass

SIZES = ("cache_bytes", "cache_disk_bytes", "snapshot_bytes", "max_body_bytes")
LIMITS = ("max_in_flight", "max_connections", "predict_max_batch_rows")
MAX_WORKERS = 256


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Where the server listens, who may ask, and how much one request may want.

    A bind that leaves this host without a token is refused unless `insecure`. Sizes are in bytes. Memory and disk are
    of all workers together, limits on requests are of each.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    cache_bytes: int = 2 * 2**30  # memory for rows changed since the base; beyond it they move to files in cache_path
    cache_disk_bytes: int = 20 * 2**30  # of such a file
    snapshot_bytes: int = 20 * 2**30  # disk for snapshots that were asked for
    cache_path: str | None = None  # absent: a folder of the process's own, removed at its end
    tokens_file: str | None = None
    insecure: bool = False
    max_body_bytes: int = 16 * 2**20
    max_ids: int = 65_536  # per embeddings request
    max_instances: int = 8_192  # per predict request
    max_neighbors: int = 1_000
    max_streams: int = 256  # log, events and long polls at once
    max_in_flight: int = 512  # requests at once
    max_connections: int = 4_096
    request_timeout_seconds: float = 30.0  # a request must have come whole, and an answer must go on, within so long
    access_log_sample_rate: float = 0.0  # of the requests that are logged: 0.01 is every hundredth
    predict_max_batch_rows: int = 1_024  # instances of several requests that are scored in one call of the model
    predict_batch_timeout_ms: float = (
        0.0  # how long a request waits for others on purpose; what waits anyway goes together
    )
    poll_interval_seconds: float = 0.005  # how often the log is looked at, without news of it: 22 µs

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"[serve] port = {self.port}: a port is between 0 and 65535 (0 takes any free one)")
        if not 1 <= self.workers <= MAX_WORKERS:
            raise ValueError(f"[serve] workers = {self.workers}: from 1 to {MAX_WORKERS}, at best as many as cores")
        for name in (*SIZES, "max_ids", "max_instances", "max_streams", *LIMITS):
            if getattr(self, name) < 1:
                raise ValueError(f"[serve] {name} = {getattr(self, name)}: must be at least 1")
        if not 0 < self.request_timeout_seconds <= 3_600:
            raise ValueError(
                f"[serve] request_timeout_seconds = {self.request_timeout_seconds}: must be above 0 and at most 3600"
            )
        if not 0 <= self.access_log_sample_rate <= 1:
            raise ValueError(
                f"[serve] access_log_sample_rate = {self.access_log_sample_rate}: a share is between 0 and 1"
            )
        if not 0 <= self.predict_batch_timeout_ms <= 1_000:
            raise ValueError(f"[serve] predict_batch_timeout_ms = {self.predict_batch_timeout_ms}: from 0 to 1000")
        if not 0 < self.poll_interval_seconds <= 10:
            raise ValueError(
                f"[serve] poll_interval_seconds = {self.poll_interval_seconds}: must be above 0 and at most 10"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
