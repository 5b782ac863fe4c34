"""The trainer's status: a typed document in `<log>/status-<epoch>.json`, replaced every second.

Servers, the demo and the verifier read it, and the next trainer before it starts. Its JSON is the core of /v1/status.
"""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from springtide_client.system.clock import wall_ms
from springtide_client.system.files import NO_SPACE_ERRNOS, write_atomically
from springtide_client.system.json_text import decode_json

_NAME = re.compile(r"status-(\d{10})\.json")

Condition = Literal["running", "catching_up", "waiting", "stopped", "failed"]
# what keeps the stream from being learned as fast as it comes: "gate", "log", "source", "spill", "dead_letters",
# "learner", "join" (it holds as much as it may), or the topic that the join waits for
Blocker = str


class PartitionStatus(msgspec.Struct, frozen=True):
    """Offsets of one partition: learned, durable in the log, the topic's end, and `lag` = end - learned."""

    learned: int = 0
    committed: int = 0
    end: int | None = None
    lag: int | None = None


Level = Literal["none", "moderate", "large"]  # of drift


class CalibrationBinStatus(msgspec.Struct, frozen=True):
    """Samples of neighboring scores: the mean prediction, the mean label, their weight."""

    predicted: float
    seen: float
    weight: float


class ScoreStatus(msgspec.Struct, frozen=True):
    """Progressive scores of one label; None where they are undefined."""

    auc: float | None = None
    logloss: float | None = None
    calibration: float | None = None  # clicks predicted over clicks seen
    label_rate: float | None = None
    normalized_entropy: float | None = None  # logloss over that of predicting the label rate
    information_gain: float | None = None  # 1 minus it
    calibration_error: float | None = None  # expected calibration error
    top_decile_lift: float | None = None
    rmse: float | None = None  # of a label that is a value: root mean squared error, of logarithms with the loss msle
    curve: list[CalibrationBinStatus] = []


class SegmentScoreStatus(msgspec.Struct, frozen=True):
    """Progressive scores of the samples with one value of a feature."""

    auc: float | None = None
    label_rate: float | None = None
    calibration: float | None = None
    samples: float = 0.0  # their weight


class SegmentStatus(msgspec.Struct, frozen=True):
    """One value of a feature; None stands for all values that are not listed."""

    value: str | None = None
    whole: SegmentScoreStatus = SegmentScoreStatus()
    window: SegmentScoreStatus = SegmentScoreStatus()


class MetricStatus(msgspec.Struct, frozen=True):
    """A mean over groups of samples, and its standard error; None where they are undefined."""

    value: float | None = None
    standard_error: float | None = None


class RankingScoreStatus(msgspec.Struct, frozen=True):
    """Ranking metrics of groups of samples, requests or users' days."""

    groups: float = 0.0
    samples: float = 0.0
    samples_with_both: float | None = None  # the share of samples in groups with both classes: only these have an AUC
    gauc: MetricStatus = MetricStatus()  # AUC, a mean over samples
    auc: MetricStatus = MetricStatus()  # a mean over groups, as are the others
    mrr: MetricStatus = MetricStatus()
    ndcg: dict[str, MetricStatus] = {}  # by k
    recall: dict[str, MetricStatus] = {}


class RankingStatus(msgspec.Struct, frozen=True):
    """Ranking metrics over all groups and over the newest ones."""

    whole: RankingScoreStatus = RankingScoreStatus()
    window: RankingScoreStatus = RankingScoreStatus()
    num_open: int = 0  # groups that may still grow
    num_ended_early: int = 0  # requests, for lack of `[scores] group_bytes`
    share: float = 1.0  # of the users that are measured


class TaskStatus(msgspec.Struct, frozen=True):
    """Scores over all samples learned and over the newest ones, by the values of `[scores] by`, and by groups."""

    whole: ScoreStatus = ScoreStatus()
    window: ScoreStatus = ScoreStatus()
    segments: dict[str, list[SegmentStatus]] = {}
    ranking: dict[str, RankingStatus] = {}  # "request", "group"


class FeatureDriftStatus(msgspec.Struct, frozen=True):
    """PSI of one feature between two windows, and the share of samples without it in each."""

    name: str
    psi: float
    level: Level
    missing: float = 0.0
    reference_missing: float = 0.0


class RateDriftStatus(msgspec.Struct, frozen=True):
    """The label rate in two windows."""

    reference: float
    recent: float
    psi: float
    level: Level


class ScoreDriftStatus(msgspec.Struct, frozen=True):
    """PSI of the distribution of scores."""

    psi: float
    level: Level


class LabelDriftStatus(msgspec.Struct, frozen=True):
    """Drift of one label."""

    label_rate: RateDriftStatus
    score: ScoreDriftStatus


class DriftStatus(msgspec.Struct, frozen=True):
    """The newest window beside an earlier one; `features` are those that drift most, most first."""

    level: Level = "none"  # the highest of all
    most: str | None = None  # the feature that drifts most, if one does
    reference_until: int = 0  # samples scored until the end of the earlier window
    recent_until: int = 0
    labels: dict[str, LabelDriftStatus] = {}
    features: list[FeatureDriftStatus] = []


class PolicyValueStatus(msgspec.Struct, frozen=True):
    """What a policy would have earned, from the propensities of the one that showed; None where it is undefined."""

    requests: int = 0
    refused: int = 0  # with a propensity or probability that is none
    logged: float | None = None  # what the policy that showed has earned
    ips: float | None = None
    ips_error: float | None = None
    snips: float | None = None
    snips_error: float | None = None
    dr: float | None = None
    dr_error: float | None = None
    effective_samples: float | None = None
    clipped: float | None = None  # the share of requests whose weight was cut
    mean_weight: float | None = None  # near 1 where propensities are right


class PolicyStatus(msgspec.Struct, frozen=True):
    """The value of a policy by all requests and by the newest ones."""

    whole: PolicyValueStatus = PolicyValueStatus()
    window: PolicyValueStatus = PolicyValueStatus()


class ScoresStatus(TaskStatus, frozen=True):
    """Scores of the first label; `tasks` has those of every label if there are several."""

    tasks: dict[str, TaskStatus] | msgspec.UnsetType = msgspec.UNSET
    drift: DriftStatus | None = None  # None while no earlier window is known
    policies: dict[str, PolicyStatus] = {}  # `[policies.*]`


class GateStatus(msgspec.Struct, frozen=True):
    """The health gate: `reason` and `detail` are of the newest verdict, also after it was resolved."""

    state: Literal["open", "holding"] = "open"
    action: str = ""
    reason: str | None = None
    detail: str | None = None
    trips: int = 0  # since the trainer's start
    rollbacks: int = 0  # automatic ones, since the log began


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds."""

    p50: float | None = None
    p99: float | None = None


class TableStatus(msgspec.Struct, frozen=True):
    """The embedding table: rows and bytes by tier; `counters` are written beside the other keys, without nesting."""

    rows: dict[str, int] = {}
    bytes: dict[str, int] = {}
    counters: dict[str, int] = {}
    skipped_steps: int = 0  # of the dense net, because gradients were not finite
    expiry_cutoffs_ms: dict[str, int] = {}  # feature -> rows last seen before are deleted
    limits: dict[str, Any] = {}  # changed at run time: [the limit, the configured value that it overrides]


class NetStatus(msgspec.Struct, frozen=True):
    """The dense net's learning: present learning rates, and what became of its gradients."""

    lr: float | None = None
    rows_lr: float | None = None  # of the main table
    gradient_norm: float | None = None  # of the newest batch's mean gradient, before clipping
    steps: int = 0  # batches learned since the log began
    clipped_steps: int = 0  # of them, those whose gradients were clipped
    wide: bool = False  # True if a wide part is learned beside the net


class PublishStatus(msgspec.Struct, frozen=True):
    """How often versions are published at present: less often the more they cost, and while behind the stream."""

    interval_seconds: float = 0.0
    cost_seconds: float = 0.0  # processor time of one version
    version_bytes: int = 0  # of one version


class RankStatus(msgspec.Struct, frozen=True):
    """One of several ranks that learn together."""

    partitions: int = 0  # that it reads
    lag: int | None = None  # records of those that are not learned yet
    samples_per_second: float = 0.0
    rows: dict[str, int] = {}  # by tier
    bytes: dict[str, int] = {}
    reason: str = ""  # what it waits for


class JoinLabelStatus(msgspec.Struct, frozen=True):
    """The events of one label that is joined."""

    unmatched: int = 0  # events whose time is over, and that came within the window of no impression
    on_time_share: float | None = None  # F: of the events that count, those within the window; None while not known


class MemoryCheckStatus(msgspec.Struct, frozen=True):
    """Of samples that brought the signals of their answer, how many were trained with the same."""

    equal: int = 0
    unequal: int = 0
    share: float | None = None  # of equal ones
    unequal_by_feature: dict[str, int] = {}  # by the first feature that differs


class JoinStatus(msgspec.Struct, frozen=True):
    """The join of labels: what it holds, and what it waits for."""

    watermark_ms: int | None = None  # samples whose windows ended before this are learned; None before the first
    impressions: int = 0  # held, until their windows are over
    events: int = 0  # held
    duplicates: int = 0  # impressions that followed one of their key too closely
    slowest: str = ""  # the topic that holds the others back, with "+window in ms" where it is that of impressions
    labels: dict[str, JoinLabelStatus] = {}
    late: int = 0  # samples learned for an event that came after the window
    settled: int = 0  # samples learned again once no more of their events count
    served: dict[str, float | None] = {}  # AUC, logloss and calibration of what was served; {} without [join] score
    memory_bytes: int = 0  # of what is held
    disk_bytes: int = 0  # of it, in scratch files
    suspect: list[str] = []  # labels with less than a tenth of the positives that the last day's rate gives


class TrainerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer's report. Partitions are written "topic/0"; times are milliseconds since 1970."""

    name: str = ""
    epoch: int = 0
    pid: int = 0
    host: str = ""
    boot_id: str = ""
    updated_ms: int = 0
    version: int | None = None
    durable_version: int | None = None
    trainer: Condition = "stopped"
    reason: str = ""
    clean_shutdown: bool = False
    samples_trained: int = 0
    samples_per_second: float = 0.0
    stream_per_second: float = 0.0  # records that the stream brings
    blocked_by: Blocker = ""
    publishing: PublishStatus = PublishStatus()
    positions: dict[str, PartitionStatus] = {}
    scores: ScoresStatus = ScoresStatus()
    loss: float | None = None
    net: NetStatus = NetStatus()
    dead_letters: dict[str, int] = {}  # by reason
    dropped_negatives: int = 0
    memory: dict[str, int] = {}  # of what is remembered: what could not be read as event times say
    memory_check: MemoryCheckStatus | None = None  # None: no `[memory] check`
    topic_resets: int = 0
    records_deleted_unread: int = 0  # by the broker, before this trainer read them
    commands: list[str] = []  # kinds that this trainer executes
    join: JoinStatus | None = None  # None: labels are fields of the samples
    event_clock_ms: int = 0
    idle_partitions: list[str] = []
    gate: GateStatus = GateStatus()
    freshness_ms: Percentiles | None = Percentiles()  # measured by servers
    staleness_ms: int | None = None
    table: TableStatus = TableStatus()
    ranks: list[RankStatus] = []  # by rank; of a trainer of one rank empty

    @property
    def lag(self) -> int | None:
        """Records of all partitions that are not learned yet; None while no end is known."""
        lags = [position.lag for position in self.positions.values() if position.lag is not None]
        return sum(lags) if lags else None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that the status file holds."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        table = document["table"]
        document["table"] = {**table.pop("counters"), **table}
        return document

    @staticmethod
    def decode(text: bytes) -> "TrainerStatus":
        """Parse a status file. Missing and wrong values have their defaults; `reason` names the wrong ones.

        Raises msgspec.DecodeError if it is not JSON.
        """
        document = decode_json(text, dict[str, Any])
        table = document.get("table")
        if isinstance(table, dict):
            counters = {name: count for name, count in table.items() if name not in TableStatus.__struct_fields__}
            document["table"] = {**table, "counters": counters}
        wrong = []
        for name, value in list(document.items()):
            try:
                msgspec.convert({name: value}, TrainerStatus)
            except msgspec.ValidationError as error:
                wrong.append(f"{name} is invalid ({error})")
                del document[name]
        if wrong:
            reasons = [str(document.get("reason") or ""), "in the status file " + ", ".join(wrong)]
            document["reason"] = "; ".join(filter(None, reasons))
        return msgspec.convert(document, TrainerStatus)


def successor(previous: TrainerStatus, *, name: str, reason: str) -> TrainerStatus:
    """Return the first status of the next trainer: what its predecessor last knew, while the log is read back."""
    return msgspec.structs.replace(
        previous,
        name=name,
        trainer="catching_up",
        reason=reason,
        clean_shutdown=False,
        samples_per_second=0.0,
        stream_per_second=0.0,
        blocked_by="",
        gate=GateStatus(),
        epoch=0,
        pid=0,
        host="",
        boot_id="",
        updated_ms=0,
    )


def sign_status(status: TrainerStatus, epoch: int) -> TrainerStatus:
    """Return the status with epoch, pid, host, boot id and time; those that are given are kept."""
    return msgspec.structs.replace(
        status,
        epoch=epoch,
        pid=status.pid or os.getpid(),
        host=status.host or socket.gethostname(),
        boot_id=status.boot_id or boot_id(),
        updated_ms=status.updated_ms or wall_ms(),
    )


def write_status(log_path: Path, epoch: int, status: TrainerStatus) -> TrainerStatus:
    """Replace the epoch's status file. Returns the status as written, signed. Raises OSError."""
    signed = sign_status(status, epoch)
    path, text = Path(log_path) / f"status-{epoch:010d}.json", msgspec.json.encode(signed.to_json())
    try:
        # a status lost in a power loss loses nothing: it is not worth an fsync every second
        write_atomically(path, text, durable=False)
    except OSError as error:
        if error.errno not in NO_SPACE_ERRNOS:
            raise
        _overwrite(path, text)
    return signed


def _overwrite(path: Path, text: bytes) -> None:
    """Reuse the blocks of the existing file: on a full disk there are no others, and the heartbeat must go on."""
    with path.open("r+b") as file:
        file.write(text.ljust(os.fstat(file.fileno()).st_size))


def newest_status_path(log_path: Path) -> Path | None:
    """Return the status file of the highest epoch; None if there is none. Raises OSError."""
    names = [name for name in os.listdir(log_path) if _NAME.fullmatch(name)]
    return Path(log_path) / max(names) if names else None


def read_status(log_path: Path) -> TrainerStatus | None:
    """Return the status of the highest epoch, as it was written; None if it is missing or unreadable."""
    try:
        path = newest_status_path(log_path)
        return None if path is None else TrainerStatus.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def has_log(log_path: Path) -> bool:
    """Return True if a trainer ever wrote a log here, whether or not its status can be read."""
    return any(Path(log_path).glob("epoch-*.claim")) or any(Path(log_path).glob("status-*.json"))


def all_statuses(log_path: Path) -> Iterator[TrainerStatus]:
    """Yield the readable statuses of every epoch."""
    for name in os.listdir(log_path):
        if _NAME.fullmatch(name):
            try:
                yield TrainerStatus.decode((Path(log_path) / name).read_bytes())
            except (OSError, msgspec.DecodeError):  # replaced every second; nothing depends on one of them
                continue


def boot_id() -> str:
    """Return an id of the running kernel: processes with the same one see each other's file locks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
