"""The keys of `[scores]`: by which features scores are split, and with what earlier window the newest is compared."""

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
            description="Memory for ranking metrics. Where it is full the oldest requests end early, and half of the "
            "users are left out, by hash: the status says how many requests, and which share of the users.",
        ),
    ] = 16 << 20
    request_seconds: Annotated[
        float,
        Meta(
            gt=0,
            extra=FINITE,
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.at)) < len(self.at):
            raise ValueError("at names a number twice")

    def check_groups(self, schema: Schema) -> None:
        """Raise ValueError if requests or groups are told apart by a field that is no id."""
        others = (*schema.labels, *schema.lists, *schema.dense, schema.timestamp, schema.weight)
        for key, name in (("[schema] request", self.request), ("[scores] group", self.group)):
            if name is not None and name in others:
                raise ValueError(f"{key} {name!r} must be an id, and has another role in [schema]")

    def check_by(self, schema: Schema) -> None:
        """Raise ValueError if a name of `by` is no categorical feature of the schema."""
        for name in self.by:
            if name not in schema.categorical:
                choices = ", ".join(schema.categorical) or "which is empty"
                raise ValueError(f'by must name features of [schema] categorical ({choices}), not "{name}"')
