"""The keys of `[labels.<name>]`, and what they and `[train]` make of each label. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from springtide.stream.join.config import LabelSource
from springtide.stream.negatives import NegativeSampling
from springtide_client.schema import Schema
from springtide_client.system.settings import FINITE

LossName = Literal["bce", "focal", "pairwise", "listwise", "mse", "msle", "huber"]
RANKING = ("pairwise", "listwise")
AGAINST_WIDE = ("focal", "listwise")  # their least is elsewhere than that of the logistic loss of the wide part
# of labels that are values and not probabilities: springtide_client.schema.LINKS
LINKS = {"mse": "identity", "huber": "identity", "msle": "log1p"}


class LabelConfig(LabelSource, frozen=True, kw_only=True):
    """The loss that is minimized for one label, and with `[join]` the events that it is made of."""

    loss: Annotated[
        LossName | None,
        Meta(
            description='`"bce"`, `"focal"`, `"pairwise"`, `"listwise"` of a label from 0 to 1; `"mse"`, `"msle"` (of '
            'logarithms), `"huber"` of one that is a value, such as a dwell time. Default: `[train] loss`.'
        ),
    ] = None
    weight: Annotated[
        float, Meta(ge=0, extra=FINITE, description="How much the label's loss counts in the net, beside the others'.")
    ] = 1.0
    group: Annotated[
        str | None,
        Meta(
            description="With `pairwise` or `listwise`: the categorical field whose samples are ranked against each "
            "other, such as a user or a request. Default: the whole batch."
        ),
    ] = None
    gamma: Annotated[
        float, Meta(ge=0, extra=FINITE, description="With `focal`: how little samples count that are predicted well.")
    ] = 2.0
    alpha: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="With `focal`: what a positive counts; a negative counts 1 - alpha. Default: both count 1."),
    ] = None
    delta: Annotated[
        float,
        Meta(
            gt=0,
            extra=FINITE,
            description="With `huber`: larger errors count linearly; in standard deviations of the label so far.",
        ),
    ] = 1.0


@dataclass(frozen=True, kw_only=True)
class LabelLoss:
    """One label's loss, settled."""

    name: LossName = "bce"
    weight: float = 1.0
    group: int | None = None  # the place of the categorical feature
    gamma: float = 2.0
    alpha: float | None = None
    delta: float = 1.0
    late: Literal["", "settle", "importance_weighted"] = ""  # how samples are weighed whose events may come late

    @property
    def link(self) -> str:
        """How the label's prediction is computed from the net's output."""
        return LINKS.get(self.name, "logit")

    @property
    def is_value(self) -> bool:
        """True if the label is a value and not a probability."""
        return self.name in LINKS


def links_of(losses: Sequence[LabelLoss], labels: Sequence[str]) -> dict[str, str]:
    """Return the links of the labels that are values, for `Schema.links`."""
    return {label: loss.link for label, loss in zip(labels, losses, strict=True) if loss.is_value}


def label_losses(default: LossName, labels: Mapping[str, LabelConfig], schema: Schema) -> tuple[LabelLoss, ...]:
    """Return the loss of each label of the schema; ValueError where a setting does not fit.

    `labels`: `[labels.<name>]`, `default`: `[train] loss`.
    """
    losses = []
    for name in schema.labels:
        config = labels.get(name, LabelConfig())
        loss, group = config.loss or default, None
        if config.group is not None:
            if loss not in RANKING:
                raise ValueError(f'[labels.{name}] group goes with {" or ".join(RANKING)}, not with loss = "{loss}"')
            if config.group not in schema.categorical:
                raise ValueError(
                    f"[labels.{name}] group must be a field of [schema] categorical "
                    f'({", ".join(schema.categorical) or "which is empty"}), not "{config.group}"'
                )
            group = schema.categorical.index(config.group)
        losses.append(
            LabelLoss(
                name=loss,
                weight=config.weight,
                group=group,
                gamma=config.gamma,
                alpha=config.alpha,
                delta=config.delta,
                late=_late_rule(name, config, loss),
            )
        )
    return tuple(losses)


def require_whole_groups(negatives: NegativeSampling, losses: Sequence[LabelLoss], schema: Schema) -> None:
    """ValueError if samples that are ranked against each other would be dropped one by one, or weighed."""
    for number, (label, loss) in enumerate(zip(schema.labels, losses, strict=True)):
        if loss.name not in RANKING:
            continue
        group = None if loss.group is None else schema.categorical[loss.group]
        is_whole = negatives.by == (group,) and negatives.rate_field is None and negatives.has_offset
        if number != negatives.label or not is_whole:
            wanted = "its group" if group is None else f'["{group}"]'
            raise ValueError(
                f'[negatives] does not go with the loss "{loss.name}" of {label!r}, which ranks the samples of a '
                f'group: only with label = "{label}", by = {wanted}, method = "offset" and no rate_field are groups '
                "kept whole"
            )


def _late_rule(name: str, config: LabelConfig, loss: LossName) -> Literal["", "settle", "importance_weighted"]:
    """Return how samples of a label are weighed; ValueError if its loss is not of a probability."""
    has_late = config.until_seconds is not None and config.until_seconds > (config.window_seconds or 0)
    if not has_late or config.late == "scale" or config.late == "ignore":
        return ""
    if loss != "bce":
        raise ValueError(
            f'[labels.{name}] late = "{config.late}" weighs samples by a predicted probability: it goes with loss = '
            f'"bce", not with "{loss}"; set late = "scale" or "ignore"'
        )
    return config.late
