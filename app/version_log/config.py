"""The keys of `[log]`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from springtide_client.rows.hash_range import MAX_RANGES
from springtide_client.system.settings import FINITE, SIZE, Settings

MIN_BYTES = 1 << 16  # of a log, a segment, a queue


class KeepRule(Settings, frozen=True, kw_only=True):
    """Which bases are kept beyond the newest ones, by the time (UTC) of the version that each holds."""

    hourly: Annotated[int, Meta(ge=0, description="The last base of each of the newest hours that have one.")] = 0
    daily: Annotated[int, Meta(ge=0, description="The last base of each of the newest days that have one.")] = 0


class LogConfig(Settings, frozen=True, kw_only=True):
    """Where the log is, how often versions are published and synced, when bases are made, how much disk it may use."""

    path: Annotated[Path, Meta(description="Folder of the log. Default: `var/<name>/log`.")]
    publish_seconds: Annotated[
        float,
        Meta(
            gt=0,
            extra=FINITE,
            description="A version is published at least this often while samples or heartbeats come. It is published "
            "at once while versions cost less than a fifth of a core and `publish_bytes` a second, and later the more "
            "they cost. Where `batch_size` samples wait, at most this often, and for at most a twentieth of a core.",
        ),
    ] = 0.5
    publish_bytes: Annotated[
        int,
        Meta(
            ge=1,
            extra=SIZE,
            description="Bytes of versions a second, of all ranks, up to which they are published sooner than "
            "`publish_seconds` asks: what disks and networks of followers should take.",
        ),
    ] = 64 << 20
    durable_seconds: Annotated[
        float, Meta(gt=0, extra=FINITE, description="Versions are synced to disk (fsync) at least this often.")
    ] = 1.0
    exact_bytes: Annotated[
        int,
        Meta(
            ge=0,
            extra=SIZE,
            description="A dense net whose parameters and optimizer state take at most this much is carried by every "
            "version, and a killed trainer loses nothing. The state of a larger net is copied, which takes as much "
            "memory again, and written beside the log; a killed trainer goes back to the newest complete one.",
        ),
    ] = 256 << 10
    dense_seconds: Annotated[
        float,
        Meta(gt=0, extra=FINITE, description="Followers get the parameters of a larger net at least this often."),
    ] = 5.0
    dense_change: Annotated[
        float,
        Meta(ge=0, description="They get them sooner once the parameters moved by this share of their norm."),
    ] = 0.01
    dense_dtype: Annotated[
        Literal["float32", "bfloat16"],
        Meta(description="What followers get: `bfloat16` halves it. A trainer always continues with float32."),
    ] = "float32"
    dense_cost: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Share of the time that publishing a larger net may take. Parameters and exact states are "
            "written less often than the keys above say where it would take more.",
        ),
    ] = 0.02
    base_minutes: Annotated[
        float, Meta(gt=0, extra=FINITE, description="A new base (full image) is made this long after the last one.")
    ] = 10.0
    base_files: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_RANGES,
            description="Of each table, a base has its rows in so many files: equal parts of the hashed keys, so that "
            "a server of a part reads only those that it needs. 0: as many as there are ranks, one without ranks.",
        ),
    ] = 0
    keep_bases: Annotated[
        int,
        Meta(
            ge=1,
            description="Newest bases that are kept, with every version since the oldest of them. Older ones are "
            "deleted, unless `keep` or a pin needs them. Bases between which no row changed count as one.",
        ),
    ] = 2
    keep: Annotated[
        Mapping[str, Any],
        Meta(
            description="Older bases that are kept by rule, such as { hourly = 24, daily = 7 }. They count into "
            "`log_bytes`, and the oldest go first when a quarter of it and room for one more base are not free.",
            extra={"table": KeepRule},
        ),
    ] = {}
    onnx: Annotated[
        bool,
        Meta(
            description="Write `model.onnx` into each base, if the extra `onnx` is installed: the dense net with that "
            "base's weights, its inputs as springtide_client's `ModelInputs`, its output `logits`; not the wide part."
        ),
    ] = True
    log_bytes: Annotated[
        int,
        Meta(
            ge=MIN_BYTES,
            extra=SIZE,
            description="Size of the whole log, at most half of `[table] disk_bytes`. When it is reached, learning "
            "waits for the next base. It holds two bases, and segments: rows that do not fit into a base of 5/16 of it "
            "expire, the ones seen longest ago first. Pinned versions count, and are never deleted.",
        ),
    ] = 20 << 30
    segment_bytes: Annotated[
        int, Meta(ge=MIN_BYTES, extra=SIZE, description="Size of one log file; at most a 32nd part of `log_bytes`.")
    ] = 64 << 20
    queue_bytes: Annotated[
        int,
        Meta(ge=MIN_BYTES, extra=SIZE, description="Versions waiting to be written; a full queue slows learning."),
    ] = 64 << 20

    @property
    def keep_rule(self) -> KeepRule:
        """`keep` with its defaults."""
        return KeepRule.of(self.keep)
