"""The keys of `[scores]`: by which features scores are split, and with what earlier window the newest is compared."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from springtide_client.schema import Schema
from springtide_client.system.settings import FINITE, INTERNAL, SIZE, Settings


class PolicyConfig(Settings, frozen=True, kw_only=True):
    """What a record says of another policy than the one that showed it: numbers of the answer of `POST /v1/rank`."""

    probability: Annotated[
        str,
        Meta(
            description="Field with the probability with which this policy would have shown the same first. Required."
        ),
    ] = ""
    predicted: Annotated[
        str | None, Meta(description="Field with the predicted reward of the item shown. For DR, with `value`.")
    ] = None
    value: Annotated[
        str | None, Meta(description="Field with the policy's expected reward, over all candidates. For DR.")
    ] = None
    cap: Annotated[
        float,
        Meta(
            gt=0, extra=FINITE, description="The most that a record weighs: probability over propensity is cut there."
        ),
    ] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.probability:
            raise ValueError('needs probability = "...": the field with the policy\'s probability of what was shown')
        if (self.predicted is None) != (self.value is None):
            raise ValueError("predicted and value go together: DR needs both")

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that it names."""
        return (self.probability, *filter(None, (self.predicted, self.value)))


@dataclass(frozen=True)
class RankingRoom:
    """For how many groups and samples of one kind so many bytes are enough."""

    num_groups: int
    num_samples: int
    num_window: int

    @staticmethod
    def of(num_labels: int, num_at: int, num_bytes: int) -> "RankingRoom":
        """`num_at`: values of k."""
        num_metrics = 3 + 2 * num_at
        window_bytes, fixed_bytes = 4 * num_labels * (num_metrics + 2), RankingRoom._fixed_bytes(num_labels, num_at)
        num_window = max(1, min(WINDOW_GROUPS, num_bytes // 4 // window_bytes))
        num_groups = (num_bytes - num_window * window_bytes - fixed_bytes) // RankingRoom._bytes(num_labels, num_at)
        num_groups = max(MIN_GROUPS, num_groups)
        return RankingRoom(num_groups, SAMPLES_PER_GROUP * num_groups, num_window)

    @staticmethod
    def least_bytes(num_labels: int, num_at: int) -> int:
        """Return the bytes of the fewest groups."""
        groups_bytes = MIN_GROUPS * RankingRoom._bytes(num_labels, num_at)
        return -(-4 * (groups_bytes + RankingRoom._fixed_bytes(num_labels, num_at)) // 3)

    @staticmethod
    def _bytes(num_labels: int, num_at: int) -> int:
        """Of a group with its samples."""
        return 4 * num_labels * (3 + 2 * num_at) + 4 * num_labels + 70 + SAMPLES_PER_GROUP * (8 * num_labels + 4)

    @staticmethod
    def _fixed_bytes(num_labels: int, num_at: int) -> int:
        return 8 * num_labels * (6 * (3 + 2 * num_at) + 2) + 8 * num_at + 8 * 1024 + 128


MIN_GROUPS, WINDOW_GROUPS = 256, 20_000
SAMPLES_PER_GROUP = 8  # for which there is room when all groups are open


class ScoresConfig(Settings, frozen=True, kw_only=True):
    """Measures of the predictions and of the stream beside AUC and logloss."""

    by: Annotated[
        tuple[str, ...],
        Meta(description='Categorical features by whose values scores are split, such as `["country", "device"]`.'),
    ] = ()
    group: Annotated[
        str | None,
        Meta(
            description="Field with the id by whose samples of a day ranking metrics are found, such as a user. It may "
            "be one of `[schema] categorical`, and need not be a feature. Metrics by request need `[schema] request`."
        ),
    ] = None
    at: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=1000)], ...],
        Meta(description="The k of NDCG@k and recall@k."),
    ] = (5, 10)
    group_bytes: Annotated[
        int,
        Meta(
            ge=1 << 18,
            extra=SIZE,
            description="Memory for ranking metrics. Where it is full the requests that would end next end early, "
            "and half of the users are left out, by hash: the status says how many requests, and the share of users.",
        ),
    ] = 16 << 20
    request_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=31_536_000,
            description="A request ends when the event clock is so far past its last sample; a user's day so long "
            "after midnight UTC.",
        ),
    ] = 60.0
    segment_bytes: Annotated[
        int,
        Meta(
            ge=65536,
            extra=SIZE,
            description="Memory for the whole run's scores of all values of `by`: 16 KiB a value and label. The most "
            "frequent values get it, the others are scored together.",
        ),
    ] = 4 << 20
    drift: Annotated[bool, Meta(description="Compare the newest window of samples with an earlier one.")] = True
    reference_samples: Annotated[
        int,
        Meta(
            ge=0,
            description="Drift compares the newest `[train] window_samples` samples with a window from so many to "
            "twice as many samples ago; with the log's first one while it is younger. 0: always with the first one.",
        ),
    ] = 1_000_000

    request: Annotated[str | None, Meta(extra=INTERNAL)] = None  # `[schema] request`
    is_sampled: Annotated[bool, Meta(extra=INTERNAL)] = False  # negatives are: `[negatives]`

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.at)) < len(self.at):
            raise ValueError("at names a number twice")

    def check_groups(self, schema: Schema) -> None:
        """Raise ValueError if the field of requests or groups is no id, or `group_bytes` are too few."""
        others = (*schema.labels, *schema.lists, *schema.dense, schema.timestamp, schema.weight)
        for key, name in (("[schema] request", self.request), ("[scores] group", self.group)):
            if name == "":
                raise ValueError(f'{key} must name a field, not ""')
            if name is not None and name in others:
                raise ValueError(f"{key} {name!r} must be an id, and has another role in [schema]")
        num_kinds = sum(name is not None for name in (self.request, self.group))
        least_bytes = num_kinds * RankingRoom.least_bytes(len(schema.labels), len(self.at))
        if self.group_bytes < least_bytes:
            raise ValueError(
                f"[scores] group_bytes must be at least {least_bytes:,} for ranking metrics of so many labels, values "
                f"of `at` and kinds of groups, not {self.group_bytes:,}"
            )

    def check_by(self, schema: Schema) -> None:
        """Raise ValueError if a name of `by` is no categorical feature of the schema."""
        for name in self.by:
            if name not in schema.categorical:
                choices = ", ".join(schema.categorical) or "which is empty"
                raise ValueError(f'by must name features of [schema] categorical ({choices}), not "{name}"')
