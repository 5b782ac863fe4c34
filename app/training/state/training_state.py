"""Everything that is true at one instant of learning: it moves by batches, leaves as versions, comes back from them.

What is not in here is not needed to go on exactly. Knows no Kafka and no files.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from springtide_client.features import IdStrings
from springtide_client.format.records import CommandEntry, Record, VersionMeta
from springtide_client.log.base import Base
from springtide_client.schema import Schema

from app.errors import UserError
from app.scores.progressive import ProgressiveScores
from app.training.state.limit_overrides import LimitOverrides
from app.training.state.version_tensors import (
    Arrays,
    arrays_to_delta,
    delta_to_arrays,
    id_strings_to_arrays,
    sketch_to_arrays,
    with_prefix,
    without_prefix,
)
from app.training.step.learner import Learner, StepReport
from app.version_log.commands.erasures import (
    erasures_ahead,
    erasures_from_meta,
    erasures_to_meta,
    high_water_marks,
    max_positions,
)
from app.version_log.commands.limits import LimitName, to_table_limits
from app.version_log.trainer_meta import GateMeta, SeekMeta, TrainerMeta
from stream.columns import Batch
from stream.decode.erasure_filter import Erasure
from stream.flow.watermark import WatermarkClock
from stream.positions import Partition, Position, positions_from_meta, positions_to_meta

MAX_RECORD_TIMES = 64  # of a version


class TrainingState:
    """Learner, scores, stream positions, clocks and counts, and what of them has changed since the last cut."""

    def __init__(self, learner: Learner, scores: ProgressiveScores, schema: Schema) -> None:
        self.learner, self.schema = learner, schema
        self._scores = scores
        self._late: Callable[[], StepReport] | None = None  # the newest step's report, not counted yet
        self.limits = LimitOverrides(learner.table.config, schema)
        self.executed_commands: dict[str, int] = {}  # when learning began: id -> version, of all that the log knows
        self.base_number = 0  # of the base that learning began with
        self.clock = WatermarkClock()
        self.positions: dict[Partition, Position] = {}
        self.samples_trained = 0
        self.dead_letters: dict[str, int] = {}
        self._loss: float | None = None
        self.complete_until_ms = 0
        self.gate = GateMeta()  # what the health gate has done: see app/training/health/rollback.py
        self.seeks: dict[str, SeekMeta] = {}  # since the last cut, by hand: partition -> from and to which offset
        self.erasures: list[Erasure] = []  # those that lie ahead in the stream, for it is read again
        self.high_water_marks: dict[
            Partition, Position
        ] = {}  # how far it was ever learned, where that is further than now
        self.logged_erasures: list[Erasure] = []  # when learning began: all that the log tells of
        self.changed = False  # since the last cut
        self._begun: Batch | None = None  # for it time has passed; its rows could not be looked up
        self._before: dict[str, Any] = {}  # the table's clocks before that: for whoever passes it once more
        self.published_scores = scores.document()  # by the newest version
        self._cut_step = 0
        self._record_ms: list[npt.NDArray[np.int64]] = []
        self._texts: list[IdStrings] = []
        self._orders: list[CommandEntry] = []  # executed since the last cut, with their results

    def learn(self, batch: Batch, *, next_batch: Batch | None = None, limit_ms: int | None = None) -> None:
        """1. Time passes in the table. 2. Score and learn. 3. Count. 4. Move positions and clocks.

        A batch may hold no sample. `next_batch`: the next batch, where it is known. SpillError while the spill takes no
        rows: nothing is learned, and the same batch may come again. A version cut meanwhile has forgotten by rule what
        the batch's time forgets; whoever goes on from it passes that time once, as here.
        """
        # batches without samples come as the stream was cut, and what is learned must not depend on that
        if len(batch) and batch is not self._begun:
            self._before = self.learner.table.clock_state()
            self.learner.table.advance(self.clock.now_ms, self.samples_trained)
            self._begun = batch
        report = self.learner.start_step(batch, next_batch)
        self._begun = None
        self.finish_step()  # the report of the step before has come while this one was prepared
        self._late = report
        if not self.learner.reports_late:
            self.finish_step()
        self.samples_trained += len(batch)
        for letter in batch.dead_letters:
            self.dead_letters[letter.reason] = self.dead_letters.get(letter.reason, 0) + 1
        if len(batch):
            self._record_ms.append(batch.record_ms_N)
        self._texts += batch.id_strings
        for partition, offset in batch.positions.items():
            self.positions[partition] = Position(batch.topic_ids.get(partition, ""), offset)
        self.clock.observe(batch.watermarks, limit_ms=limit_ms)
        self.changed = True

    def finish_step(self) -> None:
        """Count what the newest step saw, where its report comes late. Whoever asks for scores has this done."""
        if (late := self._late) is not None:
            self._late = None
            report = late()
            self._scores.observe(report.logits_NL, report.labels_NL, report.weights_N)
            if np.isfinite(report.loss):
                self._loss = report.loss

    @property
    def scores(self) -> ProgressiveScores:
        """Of every sample learned."""
        self.finish_step()
        return self._scores

    @property
    def loss(self) -> float | None:
        """Of the newest batch that has one."""
        self.finish_step()
        return self._loss

    def checkpoint(self, *, created_ms: int, complete_until_ms: int) -> tuple[VersionMeta, Arrays]:
        """What a version says: this instant, and every row, weight, score and text that moved since the last cut."""
        self.complete_until_ms = max(self.complete_until_ms, complete_until_ms)
        arrays = delta_to_arrays(self.learner.table.take_delta())
        arrays |= sketch_to_arrays(*self.learner.table.take_sketch_delta())
        if self.learner.steps != self._cut_step:
            arrays |= with_prefix("dense.", self.learner.dense_arrays())
            arrays |= with_prefix("state.optimizer.", self.learner.optimizer_arrays())
            arrays["state.random"] = torch.get_rng_state().numpy()  # dropout of a user's own net
        arrays |= with_prefix("state.scores.", self.scores.delta())
        arrays |= id_strings_to_arrays(self._texts)
        meta = self.meta(created_ms)
        self._record_ms, self._texts, self._orders, self.seeks = [], [], [], {}
        self._cut_step, self.changed = self.learner.steps, False
        return meta, arrays

    def meta(self, created_ms: int) -> VersionMeta:
        """What a version says beside its tensors."""
        self.published_scores, table = self.scores.document(), self.learner.table
        sketch = table.sketch()
        self.erasures = erasures_ahead(self.erasures, self.positions)
        if self.high_water_marks and self.max_positions == self.positions:
            self.high_water_marks = {}
        return VersionMeta(
            created_ms=created_ms,
            complete_until_ms=self.complete_until_ms,
            samples_trained=self.samples_trained,
            step=self.learner.steps,
            positions=positions_to_meta(self.positions),
            event_clock_ms=self.clock.now_ms,
            expiry_cutoffs={str(feature): ms for feature, ms in table.expiry_cutoffs.items()},
            admission={str(feature): count for feature, count in self.limits.min_counts().items()},
            sketch_blocks=sketch.num_blocks if sketch.counting else 0,
            sketch_age=sketch.age,
            fingerprint=self.schema.fingerprint(),
            scores=self.published_scores,
            dead_letters=dict(self.dead_letters),
            record_ms=sample_times(self._record_ms),
            executed_commands=self._orders,
            trainer=self._trainer_meta().to_json(),
        )

    def _trainer_meta(self) -> TrainerMeta:
        return TrainerMeta(
            watermarks={str(partition): event_ms for partition, event_ms in self.clock.watermarks.items()},
            idle=sorted(map(str, self.clock.idle)),
            loss=self.loss,
            skipped_steps=self.learner.skipped_steps,
            table=self.learner.table.clock_state() if self._begun is None else self._before,
            limits=self.limits.document(),
            gate=self.gate,
            seeks=self.seeks,
            erasures=erasures_to_meta(self.erasures),
            high_water_marks=positions_to_meta(self.high_water_marks),
        )

    def add_executed_command(self, entry: CommandEntry) -> None:
        """An order was executed: the next version says so."""
        self._orders.append(entry)
        self.changed = True

    @property
    def max_positions(self) -> dict[Partition, Position]:
        """How far the stream was ever learned: what lies before that is no news of anybody."""
        return max_positions(self.positions, self.high_water_marks)

    def add_erasures(self, forgettings: Iterable[Erasure]) -> None:
        """Nothing of these is learned from records before them."""
        self.erasures = erasures_ahead([*self.erasures, *forgettings], self.positions)

    def seek(self, positions: Mapping[Partition, Position]) -> None:
        """Go on elsewhere in the stream, by somebody's wish: the next version says so. What was forgotten stays so."""
        reached = self.max_positions
        for partition, position in positions.items():
            was = self.positions.get(partition)
            self.seeks[str(partition)] = SeekMeta(None if was is None else was.offset, position.offset)
            self.positions[partition] = position
        self.high_water_marks = max_positions(self.positions, reached)
        self.add_erasures(self.logged_erasures)
        self.changed = self.changed or bool(positions)

    def change_limits(self, limits: Mapping[LimitName, Any]) -> None:
        """New limits for the running table; ValueError where it cannot keep them: then all is as before."""
        self._set_limits(limits)
        self.limits.note(limits)

    def _set_limits(self, limits: Mapping[LimitName, Any]) -> None:
        self.learner.table.set_limits(to_table_limits(limits, self.schema))

    def base_arrays(self) -> Arrays:
        """What a base's dense.safetensors holds."""
        arrays = with_prefix("dense.", self.learner.dense_arrays())
        arrays |= with_prefix("state.optimizer.", self.learner.optimizer_arrays())
        arrays["state.random"] = torch.get_rng_state().numpy()
        return arrays | with_prefix("state.scores.", self.scores.state())

    def restore(self, base: Base, records: Iterable[Record]) -> None:
        """Become what the log says: 1. the base, 2. each version after it. The table reads the base itself."""
        arrays: Arrays = {**base.dense, **base.trainer_state}
        self.scores.restore(without_prefix("state.scores.", arrays))
        meta, table = base.manifest.meta, self.learner.table
        shape = {"dim": table.dim, "state_width": table.layout.state_width}
        latest = _kept(arrays)
        if base.sketch is not None:
            self._restore_sketch(meta, np.arange(len(base.sketch)), base.sketch)
        for record in records:
            tensors = record.tensors()
            table.restore(arrays_to_delta(tensors, **shape))
            if "sketch.block" in tensors:
                self._restore_sketch(record.meta, tensors["sketch.block"], tensors["sketch.bytes"])
            scores = without_prefix("state.scores.", tensors)
            if record.meta.restores:
                self.scores.restore(scores)
                latest = {}
            else:
                self.scores.apply(scores)
            latest |= _kept(tensors)
            meta = record.meta
        self.learner.restore(without_prefix("dense.", latest), without_prefix("state.optimizer.", latest))
        if "state.random" in latest:
            torch.set_rng_state(torch.from_numpy(np.array(latest["state.random"])))
        self._restore_meta(meta)

    def _restore_sketch(
        self, meta: VersionMeta, blocks_B: npt.NDArray[np.int64], bytes_B64: npt.NDArray[np.uint8]
    ) -> None:
        """Takes a version's counts over, unless `sketch_bytes` is another by now: then counting begins anew."""
        if meta.sketch_blocks == self.learner.table.sketch().num_blocks:
            self.learner.table.restore_sketch(blocks_B, np.ascontiguousarray(bytes_B64))

    def _restore_meta(self, meta: VersionMeta) -> None:
        self.samples_trained = meta.samples_trained
        self.learner.steps = self._cut_step = meta.step
        trainer = TrainerMeta.of(meta)
        self.learner.skipped_steps = trainer.skipped_steps
        self.positions = positions_from_meta(meta.positions)
        self.high_water_marks = high_water_marks(meta)
        self.erasures = erasures_ahead(erasures_from_meta(trainer.erasures), self.positions)
        watermarks = {Partition.parse(name): ms for name, ms in trainer.watermarks.items()}
        self.clock = WatermarkClock(meta.event_clock_ms, watermarks, map(Partition.parse, trainer.idle))
        self.gate = trainer.gate
        self.published_scores = self.scores.document()
        self.dead_letters = dict(meta.dead_letters)
        self.complete_until_ms = meta.complete_until_ms
        table = self.learner.table
        table.restore_clock_state(trainer.table)
        table.raise_expiry_cutoffs({int(feature): ms for feature, ms in meta.expiry_cutoffs.items()})
        self.limits.restore(trainer.limits)
        if changed := self.limits.changed:
            try:
                self._set_limits(changed)
            except ValueError as error:
                names = ", ".join(".".join(filter(None, name)) for name in changed)
                raise UserError(
                    f"{names} was changed live and does not go with the configuration now: {error}; "
                    f"restore what you changed, or give {names} another value there, which then counts"
                ) from error
        self._loss = trainer.loss


def _kept(arrays: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """Those of which the newest version's count, copied out of the record."""
    prefixes = ("dense.", "state.optimizer.", "state.random")
    return {name: np.array(array) for name, array in arrays.items() if name.startswith(prefixes)}


def sample_times(parts: list[npt.NDArray[np.int64]]) -> list[int]:
    """At most 64 of the times, evenly picked from the oldest to the newest."""
    if not parts:
        return []
    times = np.sort(np.concatenate(parts))
    picked = np.linspace(0, len(times) - 1, min(len(times), MAX_RECORD_TIMES)).round().astype(np.int64)
    return [int(time) for time in times[picked]]
