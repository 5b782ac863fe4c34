"""One step of learning: every sample is scored before it is learned from. Knows no stream, no log, no clock."""

# N samples, L labels, K keys, D dimension
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from springtide_client.model.inputs import lookup_keys
from springtide_client.schema import Schema
from torch import Tensor, nn

from app.training.config import DenseOptimizerConfig, TrainConfig
from app.training.device.device import TrainDevice, resolve_device
from app.training.device.pinned_buffers import PinnedBuffers, StagedColumns
from app.training.step.assembly import assemble_tensors, embedding_parts, input_columns, repeat_per_key
from app.training.step.cuda_graphs import CudaGraphStep
from app.training.step.dense_optimizer import build_optimizer, optimizer_arrays, restore_optimizer
from app.training.step.dense_step import DenseStep, DeviceStep, HostStep, StepOutcome
from embeddings.errors import SpillError
from embeddings.lookup.handle import Lookup
from embeddings.lookup.prefetch import Prefetch
from embeddings.table import EmbeddingTable
from embeddings.torch_api.autograd import embed_slices
from kernels.types import Array
from stream.columns import Batch

Arrays = dict[str, npt.NDArray[Any]]

# below this many samples a cast saves nothing to speak of, and ids seen few times deserve every bit
BFLOAT16_SAMPLES = 64
KEY_COLUMNS = (
    "features_K",
    "ids_K",
    "event_ms_K",
    "scores_K",
)  # columns of the keys, where the table is not on the host


@dataclass(frozen=True)
class StepReport:
    """What a step saw: logits from before it learned. Labels are NaN where masked."""

    logits_NL: npt.NDArray[np.float32]
    labels_NL: npt.NDArray[np.float32]
    weights_N: npt.NDArray[np.float32]
    loss: float  # the mean over weights; NaN where nothing has weight

    @property
    def predictions_NL(self) -> npt.NDArray[np.float32]:
        """Probabilities."""
        return torch.sigmoid(torch.from_numpy(self.logits_NL)).numpy()


@dataclass(frozen=True)
class BatchKeys:
    """What a batch asks of the table: arrays where the table is. The same go into its prefetch and its look-up."""

    batch: Batch
    features_K: Array
    ids_K: Array
    event_ms_K: Array
    scores_K: Array | None
    prefetch: Prefetch | None = None
    staged: StagedColumns | None = None  # its columns, on their way to the device

    def drop(self) -> None:
        """The batch is not learned from these."""
        if self.staged is not None:
            self.staged.release()


class Learner:
    """Owns the dense net and its optimizer; moves the table's rows.

    `score_field`: the dense field with a sample's score, where the table evicts by scores of ours.
    """

    def __init__(
        self,
        model: nn.Module,
        table: EmbeddingTable,
        config: TrainConfig,
        schema: Schema,
        *,
        score_field: str | None = None,
        device: TrainDevice | None = None,
    ) -> None:
        """`device`: in place of the one that the config names. ValueError where that is not to be had."""
        self.device = device or resolve_device(config)
        self.model, self.table, self.config, self.schema = model.to(self.device.device), table, config, schema
        self._score_column = None if score_field is None else schema.dense.index(score_field)
        self._upcoming: BatchKeys | None = None
        self.optimizer = build_optimizer(DenseOptimizerConfig.of(config.optimizer), model)
        self.bfloat16 = config.bfloat16 is True or (config.bfloat16 == "auto" and self.device.has_bfloat16)
        self._staging = None if self.device.transfer is None else PinnedBuffers(self.device.transfer)
        self._keys_travel = self._staging is not None and table.ops.device != "cpu"
        self.dense_step: DenseStep = self._dense_step()
        self.skipped_steps = 0  # of the dense net, for gradients that were not finite
        self.steps = 0
        model.train()

    @property
    def reports_late(self) -> bool:
        """Whether reports come after their steps: to ask for one at once would wait for the device."""
        return self._staging is not None

    def needs_checkpoint(self, batch: Batch) -> bool:
        """Whether a version must be cut before this batch, whose evictions could overflow the table's side buffer."""
        num_keys = batch.features.categorical_NC.size + sum(len(ragged.ids_M) for ragged in batch.features.lists)
        return self.table.needs_checkpoint(int(num_keys))

    def step(self, batch: Batch, next_batch: Batch | None = None) -> StepReport:
        """`begin`, and its report."""
        return self.start_step(batch, next_batch)()

    def start_step(self, batch: Batch, next_batch: Batch | None = None) -> Callable[[], StepReport]:
        """1. Look up. 2. Score. 3. Gradients; they move the rows. 4. Statistics. 5. Move the dense net.

        `next_batch`: the batch of the next step, if it is known: its rows come up from below, and its columns travel,
        while this one computes. A SpillError comes from the look-up, before anything has moved: the same batch may be
        tried again. The call that is given waits for the report, where reports are late; it is to be made once.
        """
        if len(batch) == 0:
            nothing = StepReport(batch.labels_NL, batch.labels_NL, batch.weights_N, float("nan"))
            return lambda: nothing
        keys, self._upcoming = self._upcoming, None
        if keys is None or keys.batch is not batch:
            if keys is not None:
                keys.drop()
            keys = self._keys_of(batch)
        if next_batch is not None and len(next_batch):
            self._upcoming = self._keys_of(next_batch)
        try:
            keys = self._at_table(keys)
            lookup = self.table.lookup(
                keys.features_K, keys.ids_K, keys.event_ms_K, scores_K=keys.scores_K, prefetched=keys.prefetch
            )
            try:
                if self.device.transfer is None:
                    self._look_ahead()
                    outcome = self._move(batch, lookup, keys.staged)
                else:  # which would wait for all that the step asks for: on a stream of its own, beside the step
                    placed, num_removals = self.device.transfer.record_event(), self.table.num_removals
                    outcome = self._move(batch, lookup, keys.staged)
                    if self.table.num_removals != num_removals:  # rows left with the update: ahead is after that too
                        placed = self.device.transfer.record_event()
                    with self.device.transfer.side_stream(placed):
                        self._look_ahead()
            finally:
                lookup.release()
        finally:
            keys.drop()
        self.steps += 1
        return self._report_of(batch, outcome)

    def _move(self, batch: Batch, lookup: Lookup, staged: StagedColumns | None) -> StepOutcome:
        """Rows and dense net, by a batch whose rows are held."""
        columns = None if staged is None else staged.tensors()
        parts = embedding_parts(self.schema, batch.features)
        if columns is not None and self._keys_travel:
            parts = [
                part if part.offsets_B1 is None else part._replace(offsets_B1=self._offsets(columns, number))
                for number, part in enumerate(parts)
            ]
        tensors = embed_slices(self.table, lookup, parts)
        if columns is None:
            labels_NL, weights_N = torch.from_numpy(batch.labels_NL), torch.from_numpy(batch.weights_N)
        else:
            tensors = tuple(tensor.to(self.device.device) for tensor in tensors)
            labels_NL, weights_N = columns["labels"], columns["weights"]
        inputs = assemble_tensors(self.schema, batch.features, tensors, columns)
        use_bfloat16 = self.bfloat16 and len(batch) >= BFLOAT16_SAMPLES
        return self.dense_step(inputs, labels_NL, weights_N, bfloat16=use_bfloat16)

    def _offsets(self, columns: Mapping[str, Tensor], part: int) -> Array:
        return self.table.ops.array_of(columns[f"offsets.{part}"])

    def _report_of(self, batch: Batch, outcome: StepOutcome) -> Callable[[], StepReport]:
        if self.device.transfer is None:
            report = self._report(batch, outcome.logits_NL.numpy(), *map(float, outcome[1:]))
            return lambda: report
        arrives = self.device.transfer.fetch_async(torch.cat([part.reshape(-1).float() for part in outcome]))

        def wait() -> StepReport:
            numbers, num_logits = arrives(), batch.labels_NL.size
            logits_NL = numbers[:num_logits].reshape(batch.labels_NL.shape)
            return self._report(batch, logits_NL, *map(float, numbers[num_logits:]))

        return wait

    def _report(
        self, batch: Batch, logits_NL: npt.NDArray[np.float32], loss: float, weight: float, refused: float
    ) -> StepReport:
        self.skipped_steps += int(refused)
        return StepReport(logits_NL, batch.labels_NL, batch.weights_N, loss / weight if weight > 0 else float("nan"))

    def _dense_step(self) -> DenseStep:
        if self.device.transfer is None:
            return HostStep(self.model, self.optimizer)
        step = DeviceStep(self.model, self.optimizer)
        return (
            CudaGraphStep(step, self.device.graph_capture, self.config.batch_size)
            if self.device.graph_capture
            else step
        )

    def _at_table(self, keys: BatchKeys) -> BatchKeys:
        """The keys as the table takes them without copying anything."""
        if not self._keys_travel or keys.staged is None or not isinstance(keys.ids_K, np.ndarray):
            return keys
        tensors, array_of = keys.staged.tensors(), self.table.ops.array_of
        return replace(keys, **{name: array_of(tensors[name]) for name in KEY_COLUMNS if name in tensors})

    def _look_ahead(self) -> None:
        """The next batch's rows come up. A failure is told by its look-up: this batch must not be looked up twice.

        This one's look-up is still held: what it lies on is not given to a stream that does not wait for it.
        """
        if self._upcoming is not None:
            self._upcoming = keys = self._at_table(self._upcoming)
            with suppress(SpillError):
                prefetch = self.table.prefetch(keys.features_K, keys.ids_K, keys.event_ms_K)
                self._upcoming = replace(keys, prefetch=prefetch)

    def _keys_of(self, batch: Batch) -> BatchKeys:
        features_K, ids_K = lookup_keys(self.schema, batch.features)
        event_ms_K = repeat_per_key(batch.features, batch.event_ms_N)
        scores_K = None
        if self._score_column is not None:
            # a sample without a score counts as one of 0
            scores_K = repeat_per_key(
                batch.features, np.nan_to_num(batch.features.dense_NF[:, self._score_column], nan=0)
            )
        staged = None
        if self._staging is not None:
            columns = input_columns(self.schema, batch.features)
            columns |= {"labels": batch.labels_NL, "weights": batch.weights_N}
            if self._keys_travel:
                columns |= {
                    name: column
                    for name, column in zip(KEY_COLUMNS, (features_K, ids_K, event_ms_K, scores_K), strict=True)
                    if column is not None
                }
            staged = self._staging.stage(columns)
        return BatchKeys(batch, features_K, ids_K, event_ms_K, scores_K, staged=staged)

    # what a version carries

    def dense_arrays(self) -> Arrays:
        """All parameters and buffers by name, copied."""
        return {name: value.detach().cpu().numpy().copy() for name, value in self.model.state_dict().items()}

    def optimizer_arrays(self) -> Arrays:
        """The dense optimizer's state by name, copied."""
        return optimizer_arrays(self.optimizer, self.model)

    def restore(self, dense: Mapping[str, npt.NDArray[Any]], optimizer: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from these; ValueError where they are another net's."""
        try:
            self.model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in dense.items()})
        except RuntimeError as error:
            raise ValueError(f"the log holds another net than [model] describes: {error}") from None
        restore_optimizer(self.optimizer, self.model, optimizer)
        self.dense_step = self._dense_step()  # what was captured knows the state from before
