"""One step of learning: every sample is scored before it is learned from. Knows no stream, no log, no clock."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from springtide.app.models.compiled_net import CompiledNet
from springtide.app.models.losses.config import LabelLoss
from springtide.app.models.losses.loss import Loss
from springtide.app.models.retrieval.two_tower import TwoTower
from springtide.app.models.trace import TraceError
from springtide.app.models.wide_part import wide_part_of
from springtide.app.training.config import MIN_SAMPLES_TO_SPLIT, TrainConfig
from springtide.app.training.device import TrainDevice, resolve_device
from springtide.app.training.optimization.net_update import NetUpdate
from springtide.app.training.step.batch_keys import BatchKeys, KeyPreparer, assemble_tensors
from springtide.app.training.step.cuda_graphs import CudaGraphStep
from springtide.app.training.step.global_batch import GlobalBatch, without_samples
from springtide.app.training.step.learning_step import (
    CompiledObjective,
    LearningStep,
    LocalBatch,
    LossObjective,
    OffsetObjective,
    StepColumns,
    StepDecision,
    StepOutcome,
    StepReport,
    TwoTowerObjective,
    start_report,
)
from springtide.app.training.step.memory_ranks import RanksMemoryStep
from springtide.app.training.step.memory_step import MemoryStep
from springtide.app.training.step.sample_weights import SampleWeights
from springtide.app.training.step.wide_ranks import RanksWideStep
from springtide.app.training.step.wide_step import WideStep
from springtide.embeddings.collection import AnyTable
from springtide.embeddings.errors import SpillError
from springtide.embeddings.sharding.exchange import Exchange, LocalExchange
from springtide.embeddings.sharding.row_format import Precision
from springtide.embeddings.sharding.sharded_table import ShardedTable
from springtide.embeddings.table import EmbeddingTable
from springtide.embeddings.torch_api.autograd import embed_slices
from springtide.kernels.cpu.batch_keys import gradient_rows, sum_gradients
from springtide.stream.columns import Batch
from springtide.stream.negatives import NegativeSampling
from springtide_client.model.inputs import ModelInputs
from springtide_client.schema import Schema

Arrays = dict[str, npt.NDArray[Any]]

# below this many samples a cast saves little, and ids seen a few times need every bit
BFLOAT16_SAMPLES = 64


class KeyCounts(NamedTuple):
    """Of each table, how many keys all ranks look up for a batch at most, and how many they may before a version."""

    num_keys_T: tuple[int, ...]
    max_keys_T: tuple[int, ...]

    @property
    def need_checkpoint(self) -> bool:
        """True if the evictions of this batch could overflow the buffer of rows that await the next version."""
        return any(num > most for num, most in zip(self.num_keys_T, self.max_keys_T, strict=True))


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
        negatives: NegativeSampling | None = None,
    ) -> None:
        """`score_field`: the dense field with a sample's score, for custom eviction. ValueError without the device.

        `device` overrides the one that the configuration names. `losses`: by label; none: the logistic loss of each.
        `exchange`: between many ranks, each with its own part of a batch; `table` has the rows of this rank's range.
        `precision`: of what they exchange. `negatives`: how they are sampled, if they are.
        """
        self.device = device or resolve_device(config)
        self.model, self.table, self.config, self.schema = model.to(self.device.device), table, config, schema
        self._num_threads = config.threads_for(0), config.threads_for(MIN_SAMPLES_TO_SPLIT)  # of small and large steps
        self.update = NetUpdate(model, config, on_device=self.device.transfer is not None)
        self.optimizer = self.update.optimizer
        self.bfloat16 = config.bfloat16 is True or (config.bfloat16 == "auto" and self.device.has_bfloat16)
        self.wide = wide_part_of(model)
        if self.wide is not None and self.device.graph_capture is not None:
            raise ValueError(
                "the host learns the wide part in the middle of a step, which no CUDA graph can hold: "
                "set [train] cuda_graphs = false, or [model] wide = false"
            )
        self.keys = KeyPreparer(
            schema,
            table.ops,
            self.device.transfer,
            score_field,
            wide=self.wide is not None,
            item_column=model.item_column if isinstance(model, TwoTower) else None,
            negatives=negatives,
        )
        self.negatives = negatives
        self.sharded_table: ShardedTable | None = None
        self.global_batch = LocalBatch(self.update)
        self.wide_step: WideStep | None = None
        self.exchange = exchange or LocalExchange()
        if exchange is None or exchange.is_alone:
            if self.wide is not None:
                self.wide_step = WideStep(
                    self.wide,
                    table,
                    schema,
                    num_threads=self._num_threads[1],
                    negatives=negatives,
                    by_request=config.by_request,
                )
        else:
            if self.device.graph_capture is not None:
                raise ValueError(
                    "what several ranks exchange is not part of a CUDA graph: set [train] cuda_graphs = false"
                )
            precision = precision or Precision()
            num_states = 0 if self.wide is None else WideStep.num_states_of(table)
            self.sharded_table = ShardedTable.of(table, exchange, precision, seed=config.seed, num_states=num_states)
            has_late = any(label.late for label in losses)
            self.global_batch = GlobalBatch(
                exchange, self.model, precision, self.update, seed=config.seed, has_late=has_late
            )
            if self.wide is not None:
                self.wide_step = RanksWideStep(
                    self.wide, table, schema, self.sharded_table, negatives=negatives, by_request=config.by_request
                )
        if self.wide_step is not None:
            self.wide_step.set_late_rules(losses)
        # the tables that a step looks up in, and at most how many keys of a batch
        self._tables: list[tuple[EmbeddingTable, Callable[[Batch], int]]]
        self._tables = [(one, self._max_keys) for one in table.model_tables.values()]
        if self.wide_step is not None and self.wide_step.crosses is not None:
            self._tables.append((self.wide_step.crosses, self.wide_step.max_crosses))
        self.memory: MemoryStep | None = None  # of what samples read that no record brings
        if schema.remembered:
            is_alone = self.exchange.is_alone
            self.memory = MemoryStep(schema, table) if is_alone else RanksMemoryStep(schema, table, self.exchange)
            self._tables += [(one, self.memory.max_keys) for one in self.memory.tables.values()]
        # the rows that a step looks up in, of all ranks; `table` has this rank's, and all other methods
        self.rows = table.rows if self.sharded_table is None else self.sharded_table
        self.loss = Loss(losses, self.model)
        if self.loss.own is not None and negatives is not None and negatives.has_offset and len(schema.labels) > 1:
            raise ValueError(
                "the net has a loss of its own, of several labels, which cannot tell whose negatives are sampled: set "
                '[negatives] method = "weights"'
            )
        self.objective = (LossObjective if self.wide_step is None else OffsetObjective)(self.model, self.loss)
        if isinstance(model, TwoTower):
            if any(label.late for label in losses):
                raise ValueError(
                    '[labels.*] late = "settle" and "importance_weighted" weigh by a probability, and two towers learn '
                    'to rank items: set late = "scale" or "ignore"'
                )
            self.objective = TwoTowerObjective(model, self.global_batch)
        self.compiled: CompiledObjective | None = None
        self.max_compiled_samples = 0  # of a batch; larger ones learn by autograd
        self.autograd_reason = ""  # why every batch learns by autograd; empty if small ones do not
        poolings = ["sum" if name in schema.weighted else schema.pooling_of(name) for name in schema.multi_value]
        self._poolings = poolings + ["mean"] * len(schema.sequence)
        takes_greatest, self._is_mean_P = "max" in self._poolings, np.array([one == "mean" for one in self._poolings])
        try:
            if self.device.transfer is not None:
                raise TraceError("the net is on a device")
            if takes_greatest:
                raise TraceError('lists are pooled by "max"')
            program = CompiledNet.of(model)
        except TraceError as error:
            self.autograd_reason = str(error)
        else:
            self.compiled = CompiledObjective(model, self.loss, program)
            is_cast = self.bfloat16 and config.bfloat16 is True
            self.max_compiled_samples = min(program.max_samples, BFLOAT16_SAMPLES - 1 if is_cast else sys.maxsize)
        self.learning_step = self._new_step()
        # reports arrive after their steps: asking for one at once would wait for the device
        self.reports_late = self.device.transfer is not None
        self.skipped_steps = 0  # of the dense net, because gradients were not finite
        self.clipped_steps = 0  # of the dense net
        self.gradient_norm: float | None = None  # of the newest batch's mean gradient, of the dense net
        self.steps = 0
        self.num_samples = 0  # trained, before the next step
        self.num_keys = self.num_crosses = 0  # looked up by the newest step, every occurrence of a key
        self._next: BatchKeys | None = None  # of the next batch, if it is known
        model.train()

    def count_keys(self, batch: Batch) -> KeyCounts:
        """Count the keys that a batch looks up. All ranks together, each with its own batch."""
        if self.memory is not None:
            batch = self.memory.longest(batch)
        own = [number for table, max_keys in self._tables for number in (max_keys(batch), table.max_keys())]
        columns = list(zip(*self.exchange.all_gather_numbers(own), strict=True))
        return KeyCounts(tuple(map(sum, columns[::2])), tuple(map(min, columns[1::2])))

    def has_room(self, counts: KeyCounts, wait_seconds: float = 0.0) -> bool:
        """Return True, perhaps after a wait, if the spill can take all rows that a batch of these keys may evict."""
        asked = zip(self._tables, counts.num_keys_T, strict=True)
        return self.exchange.all_true(all(table.has_room(num, wait_seconds) for (table, _), num in asked))

    def _max_keys(self, batch: Batch) -> int:
        """Return how many rows a batch of this rank looks up at most: its unique keys, if they are known already."""
        keys = self._next
        if keys is None or keys.batch is not batch or keys.prefetch is None or keys.numbers is not None:
            return self.keys.num_keys(batch)  # bins may be others by then
        return len(keys.prefetch.unique.ids_U)

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
        statistics_3D = None if self.wide_step is None else self.wide_step.arrays.number_statistics_3D
        decision = self.global_batch.vote(
            batch,
            self.steps,
            is_prepared=self._next is not None and self._next.fit(batch, statistics_3D),
            knows_next=next_batch is not None and len(next_batch) > 0,
        )
        num_samples = decision.num_samples
        if num_samples == 0:
            empty = StepReport(batch.labels_NL, batch.labels_NL, batch.weights_N)
            return lambda: empty
        torch.set_num_threads(self._num_threads[num_samples >= MIN_SAMPLES_TO_SPLIT])
        keys, self._next = self._next, None
        if keys is None or not decision.are_prepared:
            if keys is not None and keys.staged is not None:
                keys.staged.release()  # another batch was expected
            keys = self.keys.prepare(batch, statistics_3D)
        if decision.prefetch:
            next_batch = without_samples(batch) if next_batch is None else next_batch
            self._next = self.keys.prepare(next_batch, None if keys.numbers is None else keys.numbers.after_3D)
        num_trained = self.num_samples + num_samples
        self.update.begin_batch(num_samples, num_trained)
        if self.update.schedule.rows:
            self.table.lr_factor = self.update.schedule.factor(num_trained)
        if decision.has_grades and keys.counted_K is None:  # an empty batch: its look-up is made as the others' are
            keys = replace(keys, counted_K=np.ones(len(keys.ids_K), np.bool_))
        fetch = self._train(keys, decision)
        self.update.gathered.end_batch()
        self.steps, self.num_samples, self.num_keys = self.steps + 1, num_trained, len(keys.ids_K)
        self.num_crosses = 0 if self.wide_step is None else self.wide_step.num_crosses

        def wait() -> StepReport:
            report = fetch()
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

    def _train(self, keys: BatchKeys, decision: StepDecision) -> Callable[[], StepReport]:
        """Look up the rows, pin them, and learn from them while the next batch's rows are prefetched.

        The report is started before the batch's columns on the device are given back: it reads labels and weights.
        """
        transfer = self.device.transfer
        if transfer is None:
            lookup = self._look_up(keys)
            if self._next is not None:
                self._prefetch(self._next)
            try:
                return start_report(self._update(keys, lookup), None, decision)
            finally:
                self._join_wide_step()
                lookup.release()
        with ExitStack() as releases:
            if keys.staged is not None:
                releases.callback(keys.staged.release)
                keys = self.keys.at_table(keys)
            lookup = self._look_up(keys)
            releases.callback(lookup.release)
            releases.callback(self._join_wide_step)  # before the release: the last callback runs first
            # a prefetch reads the table back: after the update it would wait for the whole step, so it runs on a side
            # stream that waits for the lookup only, or for the update if that has evicted rows
            looked_up, num_removals = transfer.record_event(), self.table.num_removals
            outcome = self._update(keys, lookup)
            after = looked_up if self.table.num_removals == num_removals else transfer.record_event()
            if self._next is not None:
                with transfer.side_stream(after):
                    self._prefetch(self.keys.at_table(self._next))
            return start_report(outcome, transfer, decision)

    def _join_wide_step(self) -> None:
        if self.wide_step is not None:
            self.wide_step.join()

    def _look_up(self, keys: BatchKeys) -> Any:
        return self.rows.lookup(
            keys.features_K,
            keys.ids_K,
            keys.event_ms_K,
            scores_K=keys.scores_K,
            counted_K=keys.counted_K,
            prefetched=keys.prefetch,
        )

    def _prefetch(self, keys: BatchKeys) -> None:
        """Start to fetch the next batch's rows. Its lookup reports a failure.

        The current lookup is still pinned: its memory is not given to a stream that does not wait for it.
        """
        self._next = keys
        with suppress(SpillError):
            self._next = replace(keys, prefetch=self.rows.prefetch(keys.features_K, keys.ids_K, keys.event_ms_K))

    def _update(self, keys: BatchKeys, lookup: Any) -> StepOutcome:
        """Score, and update rows and dense net."""
        batch = keys.batch
        if self.compiled is not None and 0 < len(batch) <= self.max_compiled_samples:
            return self._update_compiled(self.compiled, keys, lookup)
        use_bfloat16 = self.bfloat16 and len(batch) >= BFLOAT16_SAMPLES
        columns = keys.tensors()
        offset_step = None if self.wide_step is None else self.wide_step.begin(keys, lookup)
        if self.sharded_table is None:
            tensors = embed_slices(self.table.rows, lookup, keys.slices)
        else:
            tensors = self.sharded_table.embed_slices(lookup, keys.slices)
        if keys.staged is not None:
            tensors = tuple(tensor.to(self.device.device) for tensor in tensors)
        groups = self.loss.groups_of(batch.features)
        if self.wide_step is not None:
            tensors = tensors[:-1]  # the last are bins, which only the wide part reads
        step_columns = StepColumns(
            assemble_tensors(keys, self.schema, tensors, columns),
            columns["labels"],
            columns["weights"],
            None if groups is None else torch.from_numpy(groups).to(self.device.device),
            columns.get("item_ids"),
            offset_step,
            columns.get("loss_weights"),
            columns.get("offsets"),
            columns.get("counted"),
            columns.get("shares"),
        )
        outcome = self.learning_step(self.objective, step_columns, bfloat16=use_bfloat16)
        if self.sharded_table is not None:
            self.sharded_table.update(lookup)
        elif self.wide_step is not None and not lookup.released:
            self.rows.touch(lookup)  # the net gives rows no gradients: count them all the same
        return outcome

    def _update_compiled(self, objective: CompiledObjective, keys: BatchKeys, lookup: Any) -> StepOutcome:
        """The same without autograd: the net is a program, and the rows' gradients go to the table at the end."""
        batch, sharded, offset_step, slices = keys.batch, self.sharded_table, None, keys.slices
        if self.wide_step is not None:
            slices, offset_step = slices[:-1], self.wide_step.begin(keys, lookup)  # without the bins
        num, num_categorical = batch.features.categorical_NC.shape
        lists = zip(slices[1:], keys.offsets_PN1, self._poolings, strict=True)
        slices = [slices[0], *(part._replace(offsets_B1=offsets, mode=mode) for part, offsets, mode in lists)]
        if sharded is None:
            rows, *pooled = (self.table.rows.gather_slice(lookup, part)[0] for part in slices)
        else:
            with torch.no_grad():
                rows, *pooled = (tensor.numpy() for tensor in sharded.embed_slices(lookup, slices))
        inputs = ModelInputs(
            rows.reshape(num, num_categorical, rows.shape[1]),
            np.stack(pooled, axis=1) if pooled else np.empty((num, 0, rows.shape[1]), np.float32),
            None,
            None,
            torch.from_numpy(batch.features.dense_NF),
        )
        groups = self.loss.groups_of(batch.features)
        columns = StepColumns(
            inputs,
            torch.from_numpy(batch.labels_NL),
            torch.from_numpy(batch.weights_N),
            None if groups is None else torch.from_numpy(groups),
            offset_step=offset_step,
            shares_NL=None if batch.shares_NL is None else torch.from_numpy(batch.shares_NL),
        )
        if (weights := SampleWeights.of(batch, self.negatives)) is not None:
            columns = columns._replace(
                loss_weights_NL=torch.from_numpy(weights.loss_NL),
                offsets_NL=torch.from_numpy(weights.offsets_NL),
                counted_N=torch.from_numpy(weights.counted_N),
            )
        outcome = self.learning_step(objective, columns, bfloat16=False)
        own = gradient_rows(num, num_categorical, keys.offsets_PN1, self._is_mean_P, len(keys.ids_K))
        for part in slices:
            if part.scales_K is not None:
                own[1][part.start : part.stop] = part.scales_K
        if sharded is None:
            self.table.rows.update(lookup, objective.grads_BD, *own)
        else:
            unique = lookup.unique
            sums_UD = sum_gradients(objective.grads_BD, *own, unique.inverse_K, len(unique.ids_U))
            sharded.update(lookup, torch.from_numpy(sums_UD))
        return outcome

    def _new_step(self) -> LearningStep | CudaGraphStep:
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

    def restore(self, dense: Mapping[str, npt.NDArray[Any]], state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from these, named as in `dense_tensors` and `state_tensors`. ValueError if they do not fit."""
        try:
            self.model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in dense.items()})
        except RuntimeError as error:
            raise ValueError(f"the log holds another net than [model] describes: {error}") from None
        self.update.restore(state)
        self._next = None
        self.learning_step = self._new_step()  # captured graphs refer to the state from before
