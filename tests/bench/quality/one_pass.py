"""Our learner, one pass over a log: each sample scored by the trainer, or by the newest version that is published."""

# N samples
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import structs

from springtide.app.models.config import ModelConfig
from springtide.app.models.losses.config import LabelLoss
from springtide.app.scores.config import ScoresConfig
from springtide.app.scores.policy_value import PolicyFields
from springtide.app.training.bootstrap import load_state, new_model, with_wide_columns
from springtide.app.training.config import GateConfig, TableSettings, TrainConfig, with_adagrad_eps
from springtide.app.training.ranks.config import ClusterConfig
from springtide.app.training.step.learner import Learner
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.write.writer import LogWriter
from springtide.embeddings.collection import open_tables
from springtide.embeddings.config import TableConfig
from springtide.embeddings.memory.capacity import Capacity
from springtide.embeddings.policy.admission import AdmissionControl
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.row_format import Precision
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.backend import backend
from springtide.stream.batcher import BatchSize
from springtide.stream.columns import Batch
from springtide.stream.config import SourceConfig
from springtide.stream.negatives import NegativeSampling
from springtide_client.features import Features, Ragged
from springtide_client.log.directory import LogDirectory
from springtide_client.model.view import View
from springtide_client.schema import Schema
from tests.support.batches import cut

Floats = npt.NDArray[np.float64]
DEVICE_BYTES = "256MiB"
SHARED_ODDS = 12  # rows for each id: hashing shares 1 - exp(-1 / 12) = 8 % of them
BUILDING = threading.Lock()  # torch has one generator for all threads
LEAST_PROBABILITY = 1e-7  # about what a float32 next to 1 can say


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run may set; the rest is the defaults of `springtide train`."""

    schema: Schema
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(threads=1))
    table: TableSettings = field(default_factory=lambda: TableSettings(device_bytes=DEVICE_BYTES))
    losses: tuple[LabelLoss, ...] = ()  # none: the logistic loss of each label
    gate: GateConfig = field(default_factory=GateConfig)
    scores: ScoresConfig = field(default_factory=ScoresConfig)
    policies: PolicyFields = field(default_factory=PolicyFields)
    log: LogConfig = field(default_factory=lambda: LogConfig(path=Path("unused")))
    source: SourceConfig = field(default_factory=lambda: SourceConfig(log_path=Path("unused")))
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    negatives: NegativeSampling | None = None
    name: str = "online"

    def with_train(self, **keys: object) -> "RunConfig":
        """Return the same with other keys of [train]."""
        return replace(self, train=structs.replace(self.train, **keys))

    def with_model(self, **keys: object) -> "RunConfig":
        """Return the same with other keys of [model]."""
        return replace(self, model=structs.replace(self.model, **keys))

    @property
    def batch_size(self) -> BatchSize:
        return BatchSize(self.train.batch_size, self.train.min_batch_size, self.train.batch_growth)


@dataclass(frozen=True)
class OnePass:
    """A logit for each sample, from before it was learned."""

    logits_N: Floats
    seconds: float


def learn_once(config: RunConfig, samples: Batch, *, num_rows: int | None = None) -> OnePass:
    """Score and learn each sample. `num_rows`: of a table, which then forgets what it evicts."""
    began = time.perf_counter()
    logits_NL = learn_labels(config, samples, num_rows=num_rows)
    return OnePass(logits_NL[:, 0], time.perf_counter() - began)


def learn_labels(config: RunConfig, samples: Batch, *, num_rows: int | None = None) -> Floats:
    """Score and learn each sample; return its logits for all labels, (N, L)."""
    learner = make_learner(config, num_rows=num_rows)
    logits: list[npt.NDArray[np.float32]] = []
    start = 0
    while start < len(samples):
        batch = cut(samples, start, start + config.batch_size.after(start))
        logits.append(learner.step(batch).logits_NL)
        start += len(batch)
    learner.table.close()
    return np.concatenate(logits).astype(np.float64)


def make_learner(
    config: RunConfig,
    *,
    num_rows: int | None = None,
    exchange: Exchange | None = None,
    precision: Precision | None = None,
) -> Learner:
    """Return a learner that has learned nothing; `exchange`: one of several."""

    def make(name: str, own: TableConfig, admission: AdmissionControl | None) -> EmbeddingTable:
        capacity = None if num_rows is None else Capacity.of_rows(num_rows)
        own = with_adagrad_eps(own)
        return EmbeddingTable(own, seed=config.train.seed, tracked=False, capacity=capacity, admission=admission)

    table = open_tables(with_wide_columns(config), backend("cpu"), make)
    with BUILDING:
        model = new_model(config)
    return Learner(
        model, table, config.train, config.schema, losses=config.losses, exchange=exchange, precision=precision
    )


def learn_and_serve(config: RunConfig, samples: Batch, versions_at: Sequence[int]) -> OnePass:
    """Score each sample by the newest published version, then learn it.

    `versions_at`: a version is published before the first batch that begins at or after each of these samples.
    """
    with tempfile.TemporaryDirectory(prefix="quality-") as folder:
        table = structs.replace(config.table, disk_path=f"{folder}/spill")
        config = replace(config, table=table, log=LogConfig(path=Path(folder) / "log"))
        with LogWriter.open(config.log, schema=config.schema) as log:
            state, size = load_state(config, log), config.batch_size
            base = log.directory.newest_base()
            assert base is not None
            view = View.open(base)
            probabilities: list[npt.NDArray[np.float32]] = []
            to_come = sorted(versions_at, reverse=True)
            began, start = time.perf_counter(), 0
            while start < len(samples):
                if to_come and to_come[-1] <= start:
                    log.append(*state.checkpoint(created_ms=1, complete_until_ms=1))
                    log.sync()
                    view = newest(view, log.directory)
                    to_come = [at for at in to_come if at > start]
                batch = cut(samples, start, start + size.after(start))
                probabilities.append(view.predict(batch.features)[:, 0])
                state.learn(batch)
                start += len(batch)
            seconds = time.perf_counter() - began
            state.learner.table.close()
    p_N = np.clip(np.concatenate(probabilities).astype(np.float64), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    return OnePass(np.log(p_N) - np.log1p(-p_N), seconds)


def newest(view: View, directory: LogDirectory) -> View:
    """Return the view of the newest version."""
    for record in directory.records(view.head):
        view = view.apply(record).merged()
    return view


def logloss(logits_N: Floats, clicked_N: np.ndarray) -> float:
    """Return the mean logloss."""
    return float(np.mean(np.logaddexp(0.0, logits_N) - clicked_N * logits_N))


def share_rows(samples: Batch) -> Batch:
    """Return the samples with ids hashed to so few numbers that 8 % of a feature's ids share theirs."""

    def hashed(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        distinct_U, places = np.unique(ids, return_inverse=True)
        random = np.random.default_rng(0)
        return random.integers(0, SHARED_ODDS * len(distinct_U), len(distinct_U))[places.reshape(ids.shape)]

    features = samples.features
    columns = [hashed(column_N) for column_N in features.categorical_NC.T]
    categorical_NC = np.stack(columns, axis=1) if columns else features.categorical_NC
    lists = tuple(Ragged(hashed(ragged.ids_M), ragged.offsets) for ragged in features.lists)
    return replace(samples, features=Features(categorical_NC, lists, features.dense_NF))


def num_ids(samples: Batch) -> int:
    """Return the number of distinct ids, counted by feature."""
    features = samples.features
    columns = [*features.categorical_NC.T, *(ragged.ids_M for ragged in features.lists)]
    return sum(len(np.unique(column)) for column in columns)
