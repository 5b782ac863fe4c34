"""The keys of `[train]`, `[gate]` and `[table]`, and the part of the configuration that a trainer reads. No torch."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from springtide.app.errors import UserError
from springtide.app.models.config import MODELS_WITHOUT_WIDE, ModelConfig
from springtide.app.models.losses.config import RANKING, LabelLoss, LossName
from springtide.app.scores.config import ScoresConfig
from springtide.app.scores.policy_value import PolicyFields
from springtide.app.training.lr_schedule import LearningRateSchedule
from springtide.app.training.ranks.config import ClusterConfig
from springtide.app.version_log.config import LogConfig
from springtide.embeddings.config import TableConfig
from springtide.embeddings.optimizer import RowOptimizer
from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide.stream.batcher import GROWTH
from springtide.stream.config import SourceConfig
from springtide.stream.history.config import HistoryConfig
from springtide.stream.join.config import JoinPlan
from springtide.stream.negatives import NegativeSampling
from springtide_client.schema import Schema
from springtide_client.system.settings import FINITE, Settings

# splitting a smaller batch costs more than it saves, and waiting for a busy core costs a hundred times that
MIN_SAMPLES_TO_SPLIT = 1024

# The learner's loss is a sum over samples, so a row's gradient has the size of its samples' errors, whatever the
# batch. An eps of that size keeps a row's first steps small where errors are small: with 0.2 % clicks and eps = 1e-8
# the first sample without a click would move an id as far as a click.
ADAGRAD_EPS = 0.1


class DenseOptimizerConfig(Settings, frozen=True, kw_only=True):
    """The keys of `[train] optimizer`.

    Adam (Kingma and Ba 2014), AdamW (Loshchilov and Hutter 2019), Adagrad (Duchi et al. 2011), Lion (Chen et al. 2023),
    or gradient descent, with momentum if wanted.
    """

    name: Annotated[
        Literal["adam", "adamw", "sgd", "adagrad", "lion"], Meta(description="Optimizer of the dense net.")
    ] = "adam"
    lr: Annotated[float, Meta(ge=0, extra=FINITE, description="Learning rate.")] = 0.001
    beta1: Annotated[
        float,
        Meta(ge=0, lt=1, description="Decay of the mean gradient (adam, adamw); its share in the direction (lion)."),
    ] = 0.9
    beta2: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="Decay of the mean squared gradient (adam, adamw), of the mean gradient (lion: 0.99 is usual).",
        ),
    ] = 0.999
    eps: Annotated[float, Meta(gt=0, extra=FINITE, description="Added to the denominator (adam, adamw, adagrad).")] = (
        1e-8
    )
    momentum: Annotated[float, Meta(ge=0, lt=1, description="Part of the last step that goes on (sgd).")] = 0.0
    weight_decay: Annotated[
        float,
        Meta(
            ge=0,
            extra=FINITE,
            description="Each step multiplies parameters by 1 - lr * weight_decay; not biases and norms, unless the "
            "model's `parameter_groups` says so. Not with adam: adamw has it.",
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "adam" and self.weight_decay:
            raise ValueError('weight_decay does not go with name = "adam": adamw has it')
        if self.name != "sgd" and self.momentum:
            raise ValueError(f'momentum goes with name = "sgd", not with "{self.name}"')
        if self.lr * self.weight_decay > 1:
            raise ValueError(
                f"lr * weight_decay must be at most 1, not {self.lr} * {self.weight_decay}: weights would change sign"
            )


COMPARING_SECONDS = 0.2  # what a batch waits for whose samples are compared with each other


class TrainConfig(Settings, frozen=True, kw_only=True):
    """How samples are learned."""

    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Meta(description='"cuda" keeps rows and net on an NVIDIA GPU (extra `gpu`); "auto" is "cpu".'),
    ] = "auto"
    batch_size: Annotated[
        int,
        Meta(
            ge=1,
            description="The most samples of a step: larger catches up faster, and takes more memory. While this many "
            "samples wait, however old they are, the trainer counts as behind: batches are full and versions rare.",
        ),
    ] = 4096
    min_batch_size: Annotated[
        int,
        Meta(
            ge=0,
            description="The fewest samples of a full batch. Full batches grow from here to `batch_size` with "
            "experience: see `batch_growth`. 0: every full batch is `batch_size`.",
        ),
    ] = 16
    batch_growth: Annotated[
        int,
        Meta(
            ge=1,
            description="N: a full batch has at most an N-th of the samples learned before it. Smaller batches learn "
            "the first samples better; 32 reaches full batches after a quarter of the samples, and costs little where "
            "the wide part learns sample by sample.",
        ),
    ] = GROWTH
    by_request: Annotated[
        bool,
        Meta(
            description="Samples of one `[schema] request` that follow each other are scored before any of them is "
            "learned, as a server scores them; batches end between requests. Ranking metrics by request need it: "
            "without it they are too low."
        ),
    ] = False
    max_wait_seconds: Annotated[
        Literal["auto"] | Annotated[float, Meta(ge=0)],
        Meta(
            description="How long a batch that is not full waits for more samples. 0: samples are learned as soon as "
            "no step runs, so batches are small while the trainer keeps up, and larger the more samples wait. `inf`: "
            "batches are always full, and depend on the stream alone; so they are with `--until-end` in any case. "
            f'"auto": 0, and {COMPARING_SECONDS} where samples of a batch are compared with each other: two towers, '
            "`pairwise`, `listwise`."
        ),
    ] = "auto"
    optimizer: Annotated[
        Mapping[str, Any], Meta(description="Optimizer of the dense net.", extra={"table": DenseOptimizerConfig})
    ] = msgspec.field(default_factory=lambda: {"name": "adam", "lr": 0.001})
    loss: Annotated[
        LossName,
        Meta(
            description='What the net minimizes: `"bce"` (logistic), `"focal"`, or how samples rank against each '
            'other: `"pairwise"`, `"listwise"`. The wide part always learns the logistic loss.'
        ),
    ] = "bce"
    task_weights: Annotated[
        Literal["fixed", "uncertainty"],
        Meta(
            description='Of several labels: `"fixed"` counts each as `[labels.NAME] weight` says, `"uncertainty"` '
            "learns how much beside that."
        ),
    ] = "fixed"
    lr_schedule: Annotated[
        Mapping[str, Any],
        Meta(
            description="The learning rate by samples trained; without it, it is constant.",
            extra={"table": LearningRateSchedule},
        ),
    ] = msgspec.field(default_factory=dict)
    clip_norm: Annotated[
        float,
        Meta(
            ge=0,
            extra=FINITE,
            description="The largest norm of the dense net's mean gradient; a larger one is scaled down. 0: no limit.",
        ),
    ] = 0.0
    clip_value: Annotated[
        float,
        Meta(
            ge=0,
            extra=FINITE,
            description="The largest magnitude of an element of the dense net's mean gradient. 0: no limit.",
        ),
    ] = 0.0
    accumulate_batches: Annotated[
        int,
        Meta(
            ge=1,
            description="Batches whose gradients the dense net learns in one step; rows learn from each batch. "
            "Several ranks exchange the net's gradients once a step of the net.",
        ),
    ] = 1
    ema_half_life_samples: Annotated[
        int,
        Meta(
            ge=0,
            description="Followers get an exponential moving average of the dense net's parameters, in which the "
            "weight of what is older than so many samples is a half. 0: the parameters themselves.",
        ),
    ] = 0
    window_samples: Annotated[int, Meta(ge=1, description="Samples in the window of recent scores.")] = 20_000
    seed: Annotated[
        int, Meta(ge=0, le=2**63 - 1, description="Seed of the initial weights and of the rows' first values.")
    ] = 0
    threads: Annotated[
        int, Meta(ge=0, le=256, description="Threads of a step; 0: one per core, and one for small batches.")
    ] = 0
    bfloat16: Annotated[
        Literal["auto"] | bool,
        Meta(
            description='Compute the dense net in bfloat16. "auto": where the processor has it and a batch is large '
            "enough to gain."
        ),
    ] = "auto"
    cuda_graphs: Annotated[
        bool, Meta(description='With device = "cuda": run the dense step of full batches as one CUDA graph.')
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cuda_graphs and self.device != "cuda":
            raise ValueError('cuda_graphs = true needs device = "cuda"')
        if self.clip_norm and self.clip_value:
            raise ValueError("clip_norm and clip_value do not go together: leave one of them out")

    @property
    def schedule(self) -> LearningRateSchedule:
        """The learning rate by samples trained."""
        return LearningRateSchedule.of(self.lr_schedule)

    @property
    def num_threads(self) -> int:
        """Threads of a step of `batch_size` samples."""
        return self.threads_for(self.batch_size)

    def threads_for(self, num_samples: int) -> int:
        """Return a step's threads: a function of settings, batch and machine, as floating-point sums depend on it.

        The ranks of a machine share its cores.
        """
        if self.threads or num_samples < MIN_SAMPLES_TO_SPLIT:
            return self.threads or 1
        return max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class GateConfig(Settings, frozen=True, kw_only=True):
    """When the health gate holds a version back."""

    action: Annotated[
        Literal["alert", "rollback"],
        Meta(
            description='What follows a held version: "alert" pauses learning; "rollback" returns to the last good '
            "version and skips the samples learned since."
        ),
    ] = "alert"
    logloss_ratio: Annotated[
        float,
        Meta(
            gt=1,
            description="Trips when recent logloss exceeds this multiple of earlier logloss and the rise is "
            "significant (6 sigma). `inf` disables it.",
        ),
    ] = 2.0
    logloss_samples: Annotated[
        int,
        Meta(
            ge=1,
            description="Samples that count as recent, however long they took; at most half of `[train] "
            "window_samples`. Versions may be closer: these samples are judged again after an eighth as many more.",
        ),
    ] = 2000
    calibration_ratio: Annotated[
        float,
        Meta(
            gt=1,
            description="Trips when recent clicks predicted over clicks seen, or the inverse, exceed this multiple of "
            "what they were earlier and are significantly (6 sigma) wrong. `inf` disables it.",
        ),
    ] = 10.0
    norm_ratio: Annotated[
        float,
        Meta(
            gt=1,
            description="Trips when the norm of the dense net exceeds this multiple of its norm `logloss_samples` "
            "ago. `inf` disables it.",
        ),
    ] = 10.0
    max_skipped: Annotated[
        int,
        Meta(ge=1, description="Samples skipped in a row by automatic rollbacks; after that the gate only alerts."),
    ] = 20_000


class TableSettings(TableConfig, frozen=True, kw_only=True):
    """The size and the rules of the table, and where rows go that do not fit."""

    score: Annotated[
        str | None,
        Meta(
            description='With `eviction = "custom"`, and only then: the `dense` field whose value in a sample scores '
            "the sample's ids; a missing value counts as 0."
        ),
    ] = None

    def check_score(self, schema: Schema) -> None:
        """Raise UserError if `score` does not fit `eviction`, or is not a dense field of the schema."""
        if not self.eviction_policy.takes_scores:
            if self.score is not None:
                raise UserError(
                    f'[table] score goes with eviction = "custom", not with "{self.eviction}": leave one of them out'
                )
            return
        choices = f"a field of [schema] dense ({', '.join(schema.dense) or 'which is empty'})"
        if self.score is None:
            raise UserError(f'[table] eviction = "custom" needs score = "...", {choices}')
        if self.score not in schema.dense:
            raise UserError(f'[table] score must be {choices}, not "{self.score}"')

    def check_schedule(self, schedule: LearningRateSchedule) -> None:
        """Raise UserError if the rows' learning rate is to follow a schedule and their optimizer cannot."""
        settings = [self.optimizer, *(table.optimizer for table in self.tables.values() if table.optimizer is not None)]
        for name in [RowOptimizer.of(one).name for one in settings] if schedule.rows else ():
            if OPTIMIZERS[name].divides_by_lr:
                raise UserError(
                    f"[train] lr_schedule rows = true does not go with {name}, whose rows mean something else under "
                    "another lr: leave it out, or take another [table] optimizer"
                )


def wait_seconds_of(config: "TrainerConfig") -> float:
    """Return `max_wait_seconds` with "auto" decided for the model and its losses."""
    if config.train.max_wait_seconds != "auto":
        return config.train.max_wait_seconds
    compares = config.model.name in MODELS_WITHOUT_WIDE or any(loss.name in RANKING for loss in config.losses)
    return COMPARING_SECONDS if compares else 0.0


class TrainerConfig(Protocol):
    """The parts of the configuration that a trainer reads; `springtide.app.config.load.Config` has them and more."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> SourceConfig: ...

    @property
    def join(self) -> JoinPlan | None: ...

    @property
    def negatives(self) -> NegativeSampling | None: ...

    @property
    def history(self) -> HistoryConfig: ...

    @property
    def schema(self) -> Schema: ...

    @property
    def losses(self) -> Sequence[LabelLoss]:
        """The losses of the schema's labels."""
        ...

    @property
    def table(self) -> TableSettings: ...

    @property
    def model(self) -> ModelConfig: ...

    @property
    def train(self) -> TrainConfig: ...

    @property
    def gate(self) -> GateConfig: ...

    @property
    def scores(self) -> ScoresConfig: ...

    @property
    def policies(self) -> PolicyFields: ...

    @property
    def log(self) -> LogConfig: ...

    @property
    def cluster(self) -> ClusterConfig: ...


def disk_folder(config: TrainerConfig) -> Path:
    """Return the folder of the spill; of several ranks, of all that are on this machine."""
    return Path(config.table.disk_path or Path("var") / config.name / "spill")


def with_adagrad_eps(config: TableConfig) -> TableConfig:
    """Return the same table with ADAGRAD_EPS for an Adagrad without `eps`."""
    if "eps" in config.optimizer or not OPTIMIZERS[RowOptimizer.of(config.optimizer).name].sums_squares:
        return config
    return msgspec.structs.replace(config, optimizer={**config.optimizer, "eps": ADAGRAD_EPS})
