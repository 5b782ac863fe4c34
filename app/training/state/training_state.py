"""Everything that training needs to continue exactly: it advances by batches, and versions hold it completely."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from springtide.app.errors import UserError
from springtide.app.models.retrieval.two_tower import TwoTower
from springtide.app.scores.policy_value import PolicyFields
from springtide.app.scores.progressive import ProgressiveScores
from springtide.app.scores.segments import SegmentNames
from springtide.app.training.ranks.ranks import Ranks
from springtide.app.training.state.limit_overrides import LimitOverrides
from springtide.app.training.state.logged_scores import LoggedScores
from springtide.app.training.state.row_budget import RowBudget, RowsOfDelta
from springtide.app.training.state.stream_state import StreamState
from springtide.app.training.state.unpublished import PendingScores, Unpublished, sample_times
from springtide.app.training.state.version_tensors import (
    Arrays,
    deltas_to_arrays,
    id_strings_to_arrays,
    replay_log,
    sketch_to_arrays,
    with_prefix,
)
from springtide.app.training.step.learner import Learner
from springtide.app.training.step.learning_step import StepReport
from springtide.app.version_log.commands.limits import LimitName, to_table_limits
from springtide.app.version_log.items import ItemLayout, items_to_arrays
from springtide.app.version_log.trainer_meta import GateMeta, SeekMeta, TrainerMeta, erasures_to_meta
from springtide.embeddings.rows import TableDelta
from springtide.kernels.kernel_store import installed_store
from springtide.stream.columns import Batch
from springtide.stream.positions import Partition, Position, positions_to_meta
from springtide_client.array_types import BoolArray
from springtide_client.features import Features
from springtide_client.format.records import CommandEntry, Record, VersionMeta
from springtide_client.log.base import Base
from springtide_client.schema import Schema

ROW_OVERHEAD_BYTES = 26  # feature, id, count and last-seen of a row in a version
COLUMNS_OF_A_CROSS = 2  # weight and information, for each label
NAME_BYTES = 128  # of an array in a file
MEASURE_SAMPLES = 1024  # which add some ten bytes each to the scores' histograms


class TrainingState:
    """Learner, scores, position in the stream and limits. Knows no Kafka and no files.

    Of several ranks each has its rows and its partitions; the rest is the same on all, once `training.ranks` has
    merged what they know. `scores` are those up to then.
    """

    def __init__(
        self,
        learner: Learner,
        scores: ProgressiveScores,
        schema: Schema,
        row_budget: RowBudget | None = None,
        ranks: Ranks | None = None,
        policy_fields: PolicyFields | None = None,
    ) -> None:
        """`row_budget` decides which rows expire for lack of disk; without it none do. `ranks`: by default one."""
        self.learner, self.schema, self.row_budget = learner, schema, row_budget
        self.ranks = ranks or Ranks()
        self.stream = StreamState(self.ranks.share)
        self.limits = LimitOverrides(learner.table.config, schema)
        self.gate = GateMeta()  # automatic rollbacks so far
        self.published_scores = scores.document()  # of the newest version
        self.logged = LoggedScores(policy_fields or PolicyFields(), self.ranks.num_ranks)
        self.own_samples = 0  # of this rank's batches, since the start
        self.base_number = 0  # of the base that learning began with
        self.executed_commands: dict[str, int] = {}  # when learning began: id -> version, of all in the log
        self._scores = scores
        self._loss: float | None = None
        self._segment_names = SegmentNames(schema, scores.by)
        self._pending_report: Callable[[], StepReport] | None = None  # of the newest step, not counted yet
        self._pending_features: Features | None = None  # of the same step
        self._pending_groups: Arrays = {}  # of the same step: by what its samples are grouped for ranking metrics
        self._pending_scored_N: BoolArray | None = None  # of the same step: which of its samples are scored
        model = learner.model
        self._item_layout = (
            ItemLayout(schema, model.item_fields, model.item_id) if isinstance(model, TwoTower) else None
        )
        self.unpublished = Unpublished(self._item_layout)
        self.pending_scores = PendingScores(scores, self._segment_names, self.ranks.num_ranks)
        self._record_ms: list[int] | None = None  # of the samples of all ranks
        self._sampled_until: int | None = None
        self._published_step = 0
        self._scored = float("-inf"), 0  # when `published_scores` were found, and after how many samples
        self._state_bytes = 0, -MEASURE_SAMPLES  # of a base, and after how many samples they were counted
        self.must_expire = False  # rows of versions read back must expire, so that the next base fits

    def learn(
        self,
        batch: Batch,
        *,
        next_batch: Batch | None = None,
        limit_ms: int | None = None,
        has_samples: bool | None = None,
    ) -> None:
        """1. Advance the table's clock. 2. Score and learn. 3. Count the previous step's report. 4. Advance the stream.

        A batch may have no samples. `next_batch`, if it is known, is prefetched.
        SpillError if the spill fails: only a new start goes on. All ranks learn together; `has_samples`: whether one of
        them has samples.
        """
        has_samples = len(batch) > 0 if has_samples is None else has_samples
        # batches without samples depend on how the stream was split, and what is learned must not depend on that
        if has_samples:
            self.learner.table.advance(self.stream.clock.now_ms, self.stream.samples_trained)
        if (memory := self.learner.memory) is not None:
            # what the next one reads is not known before
            batch, next_batch = memory.recall(batch, has_samples=has_samples), None
        num_before = self.learner.num_samples
        if has_samples:
            report = self.learner.start_step(batch, next_batch)
            self.finish_step()  # its report has arrived while this step was prepared
            self._pending_report, self._pending_features = report, batch.features
            self._pending_groups = self._scores.groups_of(
                batch.features, batch.event_ms_N, batch.request_N, batch.group_N
            )
            self._pending_scored_N = batch.is_scored_N
        if batch.id_strings:
            self.pending_scores.add_strings(batch.id_strings)
        if not self.learner.reports_late:
            self.finish_step()
        num_samples = self.learner.num_samples - num_before
        self.own_samples += len(batch)
        self.stream.advance(batch, limit_ms=limit_ms, num_samples=num_samples)
        num_looked_up = (self.learner.num_keys, self.learner.num_crosses) if has_samples else (0, 0)
        self.unpublished.add_batch(batch, *num_looked_up)
        self.logged.observe(batch, 1.0 if batch.served_N is None else self._label_share)

    def finish_step(self) -> None:
        """Count the report of the newest step, and wait for it if it is still on the device."""
        if (pending := self._pending_report) is not None:
            self._pending_report = None
            report = pending()
            features, self._pending_features = self._pending_features, None
            assert features is not None
            self.pending_scores.add_step(report, features, self._pending_scored_N, self._pending_groups)
            if np.isfinite(report.loss):
                self._loss = report.loss

    def prepare_checkpoint(self, record_ms_R: Sequence[npt.NDArray[np.int64]], sampled_until: int) -> None:
        """Note what the next version says of all ranks: record times, and rank 0's bound of sampled rows."""
        self._record_ms, self._sampled_until = sample_times(record_ms_R), sampled_until

    def own_record_times(self) -> npt.NDArray[np.int64]:
        """Return the record times of this rank's samples since the newest version."""
        return self.unpublished.record_times()

    @property
    def samples_trained(self) -> int:
        """Samples learned since the log began."""
        return self.stream.samples_trained

    @property
    def scores(self) -> ProgressiveScores:
        """Scores of every sample learned; of many ranks, up to the newest exchange."""
        self.finish_step()
        self.pending_scores.count_own()
        return self._scores

    def detailed_scores(self) -> dict[str, Any]:
        """Return the scores with calibration curves, segments and drift, of every sample learned."""
        policies = self.logged.fields.document(self.logged.policies)
        return self.scores.detailed_document(self._segment_names.name_of) | ({"policies": policies} if policies else {})

    def forget_strings(self) -> None:
        """Forget the texts of ids: one of them was erased. The stream delivers those that come again."""
        self._segment_names.clear()

    @property
    def loss(self) -> float | None:
        """Mean loss of the newest batch that has a finite one."""
        self.finish_step()
        return self._loss

    @property
    def changed(self) -> bool:
        """True if something has changed since the last checkpoint."""
        return self.unpublished.has_changes

    @property
    def is_scored(self) -> bool:
        """True if the newest version shows the scores of all samples."""
        return self._scored[1] == self.samples_trained

    def add_executed_command(self, entry: CommandEntry) -> None:
        """Record a command in the next version."""
        self.unpublished.add_command(entry)

    def seek(self, positions: Mapping[Partition, Position], *, launch: str = "") -> None:
        """Continue from other positions of the stream; the next version records it, and which launch asked for it."""
        self.stream.sought_by = launch
        for partition, position in positions.items():
            before = self.stream.positions.get(partition)
            seek = SeekMeta(None if before is None else before.offset, position.offset)
            self.unpublished.add_seek(str(partition), seek)
        self.stream.seek(positions)

    def change_limits(self, limits: Mapping[LimitName, Any]) -> None:
        """Change limits of the running table. ValueError, and no change, if it cannot keep them."""
        self._apply_limits(limits)
        self.limits.add(limits)

    def checkpoint(
        self,
        *,
        created_ms: int,
        complete_until_ms: int,
        net: Arrays | None = None,
        scores_seconds: float = 0.0,
    ) -> tuple[VersionMeta, Arrays]:
        """Return the next version: the state as of now, and all tensors that changed since the previous checkpoint.

        `net`: what the version carries of the dense net; without it everything, if the net has changed.
        `scores_seconds`: how old the scores in its meta may be; its tensors have all samples in any case.
        """
        self.stream.complete_until_ms = max(self.stream.complete_until_ms, complete_until_ms)
        deltas = {name: table.take_delta() for name, table in self.learner.table.tables.items()}
        if self.row_budget is not None:
            self._add_to_budget(self.row_budget, list(deltas.values()))
            self.row_budget.expect_state(self._num_state_bytes())
            self._expire_excess(self.row_budget)
        arrays = deltas_to_arrays(deltas)
        arrays |= sketch_to_arrays(*self.learner.table.admission.take_delta())
        if net is not None:
            arrays |= net
        elif self.learner.steps != self._published_step:
            arrays |= self._dense_arrays()
        scores = with_prefix("state.scores.", self.scores.delta())
        if self.ranks.is_first:
            arrays |= scores
        arrays |= id_strings_to_arrays(self.unpublished.id_strings)
        arrays |= items_to_arrays(self.unpublished.items())
        meta = self.meta(created_ms, scores_seconds=scores_seconds)
        self.unpublished, self._published_step = Unpublished(self._item_layout), self.learner.steps
        self._record_ms = self._sampled_until = None
        return meta, arrays

    @property
    def max_unpublished_bytes(self) -> int:
        """At most so many bytes the rows of the next version take: one for every key looked up, and every cross."""
        layout, unpublished = self.learner.table.layout, self.unpublished  # of the widest rows
        row_bytes = 4 * (layout.dim + layout.state_width) + ROW_OVERHEAD_BYTES
        cross_bytes = 4 * COLUMNS_OF_A_CROSS * len(self.schema.labels) + ROW_OVERHEAD_BYTES
        return unpublished.num_keys * row_bytes + unpublished.num_crosses * cross_bytes

    def on_base_mapped(self, base: Base) -> None:
        """Note the sizes of a newer base."""
        if self.row_budget is not None:
            self.row_budget.measure(base.manifest, len(base))

    def _add_to_budget(self, budget: RowBudget, deltas: Sequence[TableDelta]) -> None:
        parts = [RowsOfDelta.of(delta, self._sampled_until) for delta in deltas]
        for of_rank in self.ranks.all_gather(parts):
            for part in of_rank if self.ranks.is_first else ():
                budget.add_part(part)

    def _expire_excess(self, budget: RowBudget) -> None:
        self.must_expire = False
        raised: dict[int, int] = {}
        if self.ranks.is_first:
            raised = budget.raised_cutoffs(self.learner.table.expiry_cutoffs)
        if raised := self.ranks.broadcast(raised):
            self.learner.table.raise_expiry_cutoffs(raised)

    def base_arrays(self) -> Arrays:
        """Return the complete tensors of a base, except for rows and sketch."""
        return self._dense_arrays() | with_prefix("state.scores.", self.scores.state())

    def meta(self, created_ms: int, *, scores_seconds: float = 0.0) -> VersionMeta:
        """Return what a version says beside its tensors."""
        stream, table = self.stream, self.learner.table
        if time.monotonic() - self._scored[0] >= scores_seconds:
            self.published_scores = self.scores.document()
            self._scored = time.monotonic(), stream.samples_trained
        sketch = table.admission.sketch_info()
        stream.drop_passed()
        return VersionMeta(
            created_ms=created_ms,
            complete_until_ms=stream.complete_until_ms,
            samples_trained=stream.samples_trained,
            step=self.learner.steps,
            positions=positions_to_meta(stream.positions),
            event_clock_ms=stream.clock.now_ms,
            expiry_cutoffs={str(feature): ms for feature, ms in table.expiry_cutoffs.items()},
            admission={str(feature): count for feature, count in self.limits.min_counts().items()},
            sketch_blocks=sketch.num_blocks if sketch.counting else 0,
            sketch_age=sketch.age,
            fingerprint=self.schema.fingerprint(),
            scores=self.published_scores,
            label_shares=self.label_shares(),
            dead_letters=dict(stream.dead_letters),
            record_ms=sample_times([self.unpublished.record_times()]) if self._record_ms is None else self._record_ms,
            catching_up=self.unpublished.is_catching_up,
            executed_commands=self.unpublished.commands,
            trainer=self._trainer_meta().to_json(),
        )

    def label_shares(self) -> dict[str, float]:
        """Return the shares of events within the window by which predictions are divided, by label.

        Of several ranks they are of all their impressions, as of the newest exchange.
        """
        join, losses = self.stream.join, zip(self.schema.labels, self.learner.loss.labels, strict=False)
        if join is None:
            return {}
        weighed = {label for label, loss in losses if loss.late}  # they learn all events
        return {label: share.share for label, share in join.total_shares().items() if label not in weighed}

    @property
    def _label_share(self) -> float:
        """The share of the first label."""
        return self.label_shares().get(self.schema.labels[0], 1.0)

    def restore(
        self,
        base: Base,
        records: Iterable[Record],
        read_state: Callable[[int], Arrays] = lambda number: {},
    ) -> None:
        """Become what the log says; `read_state` returns exact states that are not in its records.

        ValueError if the log holds another net, UserError if its limits do not fit.
        """
        budget = self.row_budget
        if budget is not None:
            budget.read_base(base)
        on_delta = None if budget is None else budget.add
        meta = replay_log(
            self.learner, self._scores, base, records, read_state=read_state, on_delta=on_delta, ranks=self.ranks
        )
        trainer, table = TrainerMeta.of(meta), self.learner.table
        self.learner.steps = self._published_step = meta.step
        self.learner.num_samples = meta.samples_trained
        self.learner.skipped_steps, self.learner.clipped_steps = trainer.skipped_steps, trainer.clipped_steps
        self.stream.restore(meta, trainer)
        self.gate = trainer.gate
        self.logged.restore(trainer.served, trainer.policies)
        if self.learner.memory is not None:
            self.learner.memory.restore(trainer.memory)
        self.published_scores, self._loss = self._scores.document(), trainer.loss
        self._scored = time.monotonic(), meta.samples_trained
        table.restore_clock_state(trainer.table)
        table.raise_expiry_cutoffs({int(feature): ms for feature, ms in meta.expiry_cutoffs.items()})
        is_decided_here = budget is not None and self.ranks.is_first
        self.must_expire = is_decided_here and budget is not None and budget.is_exceeded(table.expiry_cutoffs)
        self.limits.restore(trainer.limits)
        if changed := self.limits.changed:
            try:
                self._apply_limits(changed)
            except ValueError as error:
                names = ", ".join(".".join(filter(None, name)) for name in changed)
                raise UserError(
                    f"{names} was changed at run time and does not fit the configuration now: {error}; "
                    f"restore the configuration, or give {names} another value there, which then takes effect"
                ) from error

    def _trainer_meta(self) -> TrainerMeta:
        stream = self.stream
        return TrainerMeta(
            watermarks={str(partition): event_ms for partition, event_ms in stream.clock.watermarks.items()},
            idle=sorted(map(str, stream.clock.idle)),
            loss=self.loss,
            skipped_steps=self.learner.skipped_steps,
            clipped_steps=self.learner.clipped_steps,
            kernels=installed_store().cpu,
            table=self.learner.table.clock_state(),
            limits=self.limits.document(),
            gate=self.gate,
            seeks=self.unpublished.seeks,
            sought_by=stream.sought_by,
            erasures=erasures_to_meta(stream.erasures),
            high_water_marks=positions_to_meta(stream.high_water_marks),
            join=stream.join,
            num_dropped=stream.num_dropped,
            served=self.logged.served,
            policies=self.logged.policies,
            num_late=stream.num_late,
            memory={} if self.learner.memory is None else dict(self.learner.memory.counts),
            num_settled=stream.num_settled,
        )

    def _num_state_bytes(self) -> int:
        """Return the bytes of `base_arrays` and their names, counted at most MEASURE_SAMPLES samples ago."""
        num_bytes, after = self._state_bytes
        if self.samples_trained - after >= MEASURE_SAMPLES:
            num_bytes = self._count_state_bytes()
            self._state_bytes = num_bytes, self.samples_trained
        return num_bytes

    def _count_state_bytes(self) -> int:
        sizes = [tensor.nbytes for tensor in self._dense_tensors().values()]
        sizes += self.scores.state_sizes()
        return sum(sizes) + NAME_BYTES * len(sizes)

    def _dense_tensors(self) -> dict[str, torch.Tensor]:
        learner = self.learner
        tensors = with_prefix("dense.", learner.served_tensors()) | with_prefix("state.", learner.state_tensors())
        if learner.serves_averages:
            tensors |= with_prefix("state.parameters.", learner.dense_tensors())
        return tensors

    def _dense_arrays(self) -> Arrays:
        arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._dense_tensors().items()}
        return arrays | {"state.random": torch.get_rng_state().numpy()}  # for dropout in a net of the user's own

    def _apply_limits(self, limits: Mapping[LimitName, Any]) -> None:
        self.learner.table.set_limits(to_table_limits(limits, self.schema))
