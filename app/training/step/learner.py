"""One step of learning: every sample is scored before it is learned from. Knows no stream, no log, no clock."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from springtide.app.models.losses.config import LabelLoss
from springtide.app.models.losses.loss import Loss
from springtide.app.models.retrieval.two_tower import TwoTower
from springtide.app.models.wide_part import wide_part_of
from springtide.app.training.config import TrainConfig
from springtide.app.training.device import TrainDevice, resolve_device
from springtide.app.training.optimization.dense_optimizer import optimizer_arrays
from springtide.app.training.optimization.net_update import NetUpdate
from springtide.app.training.step.batch_keys import BatchKeys, KeyPreparer, assemble_tensors, num_keys
from springtide.app.training.step.cuda_graphs import CudaGraphStep
from springtide.app.training.step.global_batch import GlobalBatch, LocalBatch, without_samples
from springtide.app.training.step.learning_step import (
    LearningStep,
    LossObjective,
    OffsetObjective,
    Step,
    StepColumns,
    StepOutcome,
    StepReport,
    TwoTowerObjective,
    fetch_outcome,
    fetch_samples,
    report_of,
)
from springtide.app.training.step.wide_ranks import RanksWideStep
from springtide.app.training.step.wide_step import WideStep
from springtide.embeddings.collection import AnyTable
from springtide.embeddings.errors import SpillError
from springtide.embeddings.lookup.handle import StepTable
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.row_format import Precision
from springtide.embeddings.sharding.sharded_table import ShardedTable
from springtide.embeddings.torch_api.autograd import embed_slices
from springtide.stream.columns import Batch
from springtide_client.schema import Schema

Arrays = dict[str, npt.NDArray[Any]]

# below this many samples a cast saves little, and ids seen a few times need every bit
BFLOAT16_SAMPLES = 64


class Learner:
    """Owns the dense net and its optimizer, and updates the table's rows."""

    def __init__(
        self,
        model: nn.Module,
        table: AnyTable,
        config: TrainConfig,
        schema: Schema,
        *,
        score_field: str | None = None,
        device: TrainDevice | None = None,
        losses: Sequence[LabelLoss] = (),
        exchange: Exchange | None = None,
        precision: Precision | None = None,
    ) -> None:
        """`score_field`: the dense field with a sample's score, for custom eviction. ValueError without the device.

        `device` overrides the one that the configuration names. `losses`: by label; none: the logistic loss of each.
        `exchange`: between many ranks, each with its own part of a batch; `table` has the rows of this rank's range.
        `precision`: of what they exchange.
        """
        self.device = device or resolve_device(config)
        self.model, self.table, self.config, self.schema = model.to(self.device.device), table, config, schema
        self.update = NetUpdate(model, config, on_device=self.device.transfer is not None)
        self.optimizer = self.update.optimizer
        self.bfloat16 = config.bfloat16 is True or (config.bfloat16 == "auto" and self.device.has_bfloat16)
        self.wide = wide_part_of(model)
        self.keys = KeyPreparer(
            schema,
            table.ops,
            self.device.transfer,
            score_field,
            wide=self.wide is not None,
            item_column=model.item_column if isinstance(model, TwoTower) else None,
        )
        self.sharded_table: ShardedTable | None = None
        self.global_batch = LocalBatch(self.update)
        if exchange is not None and not exchange.is_alone:
            self._require_learnable_by_many()
            precision = precision or Precision()
            num_states = 0 if self.wide is None else WideStep.num_states_of(table)
            self.sharded_table = ShardedTable.of(table, exchange, precision, seed=config.seed, num_states=num_states)
            self.global_batch = GlobalBatch(exchange, self.model, precision, self.update)
        self.wide_step = self._wide_step(schema)
        self.loss = Loss(losses, self.model)
        self.objective = LossObjective(self.model, self.loss)
        if isinstance(model, TwoTower):
            self.objective = TwoTowerObjective(model, self.global_batch)
        self.learning_step: Step = self._learning_step()
        self.skipped_steps = 0  # of the dense net, because gradients were not finite
        self.clipped_steps = 0  # of the dense net
        self.gradient_norm: float | None = None  # of the newest batch's mean gradient, of the dense net
        self.steps = 0
        self.num_samples = 0  # trained, before the next step
        self._next: BatchKeys | None = None  # of the next batch, if it is known
        model.train()

    @property
    def rows(self) -> StepTable | ShardedTable:
        """The rows that a step looks up in, of all ranks; `table` has this rank's, and all other methods."""
        return self.table.rows if self.sharded_table is None else self.sharded_table

    @property
    def reports_late(self) -> bool:
        """True if reports arrive after their steps: asking for one at once would wait for the device."""
        return self.device.transfer is not None

    def needs_checkpoint(self, batch: Batch) -> bool:
        """Return True if the evictions of this batch could overflow the buffer of rows that await the next version."""
        if self.wide_step is not None and self.wide_step.needs_checkpoint(batch):
            return True
        table = self.table if self.sharded_table is None else self.sharded_table
        return table.needs_checkpoint(self.num_keys(batch))

    def has_room(self, batch: Batch, wait_seconds: float = 0.0) -> bool:
        """Return True, perhaps after a wait, if the spill can take all rows that this batch may evict."""
        if self.wide_step is not None and not self.wide_step.has_room(batch, wait_seconds):
            return False
        table = self.table if self.sharded_table is None else self.sharded_table
        return table.has_room(self.num_keys(batch), wait_seconds)

    def num_keys(self, batch: Batch) -> int:
        """Return how many keys a batch has, every occurrence; not those of crosses."""
        return num_keys(batch, wide=self.wide is not None)

    @property
    def num_crosses(self) -> int:
        """Rows of crosses that the newest step looked up."""
        return 0 if self.wide_step is None else self.wide_step.num_crosses

    def step(self, batch: Batch, next_batch: Batch | None = None) -> StepReport:
        """Run a step and wait for its report."""
        return self.start_step(batch, next_batch)()

    def start_step(self, batch: Batch, next_batch: Batch | None = None) -> Callable[[], StepReport]:
        """1. Look up. 2. Score. 3. Compute gradients and update the rows. 4. Update statistics and the dense net.

        `next_batch`: if it is known, its rows are prefetched and its columns copied while this step computes. The
        returned call waits for the report and is made once. After a SpillError only a new start goes on: `has_room`
        says before a step whether the spill has room.

        Of many ranks all make the call, each with its own batch, which may be empty. They learn what one process
        learns from all batches together, in the order of ranks; the report is of all samples, the same on every rank.
        """
        decision = self.global_batch.vote(
            batch,
            is_prepared=self._is_prepared(batch),
            knows_next=next_batch is not None and len(next_batch) > 0,
        )
        num_samples = decision.num_samples
        if num_samples == 0:
            empty = StepReport(batch.labels_NL, batch.labels_NL, batch.weights_N)
            return lambda: empty
        torch.set_num_threads(self.config.threads_for(num_samples))
        keys = self._take_prepared(batch)
        if decision.prefetch:
            next_batch = without_samples(batch) if next_batch is None else next_batch
            self._next = self.keys.prepare(next_batch, None if keys.numbers is None else keys.numbers.after_3D)
        num_trained = self.num_samples + num_samples
        self.update.begin_batch(num_samples, num_trained)
        if self.update.schedule.rows:
            self.table.lr_factor = self.update.schedule.factor(num_trained)
        self.global_batch.seed(self.config.seed, self.steps)
        outcome = self._train(keys)
        self.update.end_batch()
        self.steps, self.num_samples = self.steps + 1, num_trained
        fetch = fetch_outcome(outcome, self.device.transfer)
        num_before = decision.num_before(self.global_batch.rank)
        fetch_labels = fetch_samples(batch, self.global_batch.samples, self.device.transfer)

        def wait() -> StepReport:
            report = report_of(*fetch_labels(), fetch(), num_before)
            self.skipped_steps += report.skipped
            self.clipped_steps += report.clipped
            self.gradient_norm = report.gradient_norm if np.isfinite(report.gradient_norm) else None
            return report

        return wait

    def merge_gathered(self) -> None:
        """Find what all ranks have gathered, for a version, which has it. All ranks."""
        self.update.gathered.merge()

    def require_same_net(self) -> None:
        """ShardError unless every rank has the same net, and the same state of its optimizer, bit by bit. All ranks."""
        self.global_batch.require_same(lambda: self.dense_tensors() | self.state_tensors())

    def _is_same(self, first: Batch, second: Batch) -> bool:
        """Return True if these are one batch: without samples, which only one of many ranks learns, any are."""
        return first is second or not (len(first) or len(second))

    def _is_prepared(self, batch: Batch) -> bool:
        """Return True if the previous step prepared the keys of this batch."""
        keys = self._next
        return keys is not None and self._is_same(keys.batch, batch) and keys.follows(self._number_statistics)

    def _take_prepared(self, batch: Batch) -> BatchKeys:
        """Return the keys that the previous step prepared, or prepare them if it expected another batch."""
        keys, self._next = self._next, None
        if keys is not None and self.global_batch.decision.are_prepared:
            return keys
        if keys is not None:
            keys.release()
        return self.keys.prepare(batch, self._number_statistics)

    @property
    def _number_statistics(self) -> npt.NDArray[np.float64] | None:
        return None if self.wide is None else self.wide.arrays.number_statistics_3D

    def _train(self, keys: BatchKeys) -> StepOutcome:
        """Look up the rows, pin them, and learn from them while the next batch's rows are prefetched."""
        with ExitStack() as releases:
            releases.callback(keys.release)
            keys = self.keys.at_table(keys)
            lookup = self.rows.lookup(
                keys.features_K, keys.ids_K, keys.event_ms_K, scores_K=keys.scores_K, prefetched=keys.prefetch
            )
            transfer = self.device.transfer
            if transfer is None:
                self._prefetch_next()
                try:
                    return self._update(keys, lookup)
                finally:
                    lookup.release()
            releases.callback(lookup.release)
            # a prefetch reads the table back: after the update it would wait for the whole step, so it runs on a side
            # stream that waits for the lookup only, or for the update if that has evicted rows
            looked_up, num_removals = transfer.record_event(), self.table.num_removals
            outcome = self._update(keys, lookup)
            after = looked_up if self.table.num_removals == num_removals else transfer.record_event()
            with transfer.side_stream(after):
                self._prefetch_next()
            return outcome

    def _prefetch_next(self) -> None:
        """Start to recall the next batch's rows. Its lookup reports a failure.

        The current lookup is still pinned: its memory is not given to a stream that does not wait for it.
        """
        if self._next is not None:
            self._next = keys = self.keys.at_table(self._next)
            with suppress(SpillError):
                prefetch = self.rows.prefetch(keys.features_K, keys.ids_K, keys.event_ms_K)
                self._next = replace(keys, prefetch=prefetch)

    def _update(self, keys: BatchKeys, lookup: Any) -> StepOutcome:
        """Score, and update rows and dense net."""
        batch, staged = keys.batch, keys.staged
        columns = None if staged is None else staged.tensors()
        slices = self.keys.lookup_slices(batch, columns)
        if self.sharded_table is None:
            tensors = embed_slices(self.table.rows, lookup, slices)
        else:
            tensors = self.sharded_table.embed_slices(lookup, slices)
        if columns is None:
            labels_NL, weights_N = torch.from_numpy(batch.labels_NL), torch.from_numpy(batch.weights_N)
        else:
            tensors = tuple(tensor.to(self.device.device) for tensor in tensors)
            labels_NL, weights_N = columns["labels"], columns["weights"]
        if self.wide_step is not None:
            tensors = tensors[:-1]  # without the bins
        inputs = assemble_tensors(self.schema, batch.features, tensors, columns)
        groups = self.loss.groups_of(batch.features)
        groups_NG = None if groups is None else torch.from_numpy(groups).to(self.device.device)
        use_bfloat16 = self.bfloat16 and len(batch) >= BFLOAT16_SAMPLES
        item_ids_N = None
        if isinstance(self.model, TwoTower):
            item_ids_N = torch.from_numpy(self.keys.item_ids(batch)) if columns is None else columns["item_ids"]
        objective = self.objective
        if self.wide_step is not None:
            objective = OffsetObjective(self.model, self.loss, self.wide_step.of_batch(keys, lookup))
        step_columns = StepColumns(inputs, labels_NL, weights_N, groups_NG, item_ids_N)
        outcome = self.learning_step(objective, step_columns, bfloat16=use_bfloat16)
        if self.sharded_table is not None:
            self.sharded_table.update(lookup)
        elif self.wide_step is not None and not lookup.released:
            self.table.rows.touch(lookup)  # the net gives rows no gradients: count them all the same
        return outcome

    def _require_learnable_by_many(self) -> None:
        """ValueError if several ranks cannot learn this net together so far."""
        if self.device.graph_capture is not None:
            raise ValueError("what several ranks exchange is not part of a CUDA graph: set [train] cuda_graphs = false")

    def _wide_step(self, schema: Schema) -> WideStep | None:
        if self.wide is None:
            return None
        if self.sharded_table is None:
            return WideStep(self.wide, self.table, schema)
        return RanksWideStep(self.wide, self.table, schema, self.sharded_table)

    def _learning_step(self) -> Step:
        step, capture = LearningStep(self.model, self.update, self.global_batch), self.device.graph_capture
        if capture is None or isinstance(self.model, TwoTower):
            return step
        return CudaGraphStep(step, capture, self.config.batch_size)

    def dense_arrays(self) -> Arrays:
        """Return all parameters and buffers by name, copied."""
        return {name: value.detach().cpu().numpy().copy() for name, value in self.model.state_dict().items()}

    def dense_tensors(self) -> dict[str, torch.Tensor]:
        """Return all parameters and buffers by name, themselves."""
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def served_tensors(self) -> dict[str, torch.Tensor]:
        """Return what followers get by the names of `dense_tensors`: averages, if there are any, of the parameters."""
        averages = self.update.averages
        return self.dense_tensors() if averages is None else self.dense_tensors() | averages.named()

    @property
    def serves_averages(self) -> bool:
        """True if followers get other parameters than those that are trained."""
        return self.update.averages is not None

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return what else a trainer needs to go on, by the names in a version after `state.`, themselves."""
        return self.update.tensors()

    def optimizer_arrays(self) -> Arrays:
        """Return the dense optimizer's state by name, copied."""
        return optimizer_arrays(self.optimizer, self.model)

    def restore(self, dense: Mapping[str, npt.NDArray[Any]], state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from these, named as in `dense_tensors` and `state_tensors`. ValueError if they do not fit."""
        try:
            self.model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in dense.items()})
        except RuntimeError as error:
            raise ValueError(f"the log holds another net than [model] describes: {error}") from None
        self.update.restore(state)
        self._next = None
        self.learning_step = self._learning_step()  # captured graphs refer to the state from before
