"""The wide part's step: between the net's forward and backward pass it scores and learns a batch, sample by sample."""

# N samples, K keys, U rows, C crosses, Q rows of crosses, D dimension, S state width, L labels
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.app.models.wide_part import WidePart
from springtide.app.training.step.batch_keys import BatchKeys
from springtide.app.version_log.change.plan import CROSSES_TABLE
from springtide.embeddings.collection import AnyTable
from springtide.embeddings.lookup.handle import Lookup
from springtide.embeddings.sharding.sharded_table import ShardedTable
from springtide.embeddings.table import EmbeddingTable
from springtide.kernels.cpu.wide.arrays import CrossBatch, WideBatch
from springtide.kernels.cpu.wide.in_order import in_order_pass
from springtide.kernels.cpu.wide.prepare import crosses_of, first_samples, potential_crosses
from springtide.kernels.row_optimizers import OPTIMIZERS
from springtide.kernels.types import RowColumns
from springtide.stream.columns import Batch
from springtide_client.keys import CROSSES
from springtide_client.schema import Schema
from springtide_client.wide.layout import born_column, born_of
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.slots import Slots, num_crossed, row_hashes, slots_of

MAX_CROSSES = 1 << 18  # looked up at once
CHOICE_SAMPLES = 500  # samples between two choices of pairs
FACTORIZATION_RATE = 1.2  # of the table's learning rate, which is the net's for its rows
FACTORIZATION_EPS = 0.05

Float32Array = npt.NDArray[np.float32]


class WideStep:
    """Learns the wide part over a table's rows. On the host only."""

    is_of_ranks = False  # True: the batch is a rank's part of samples that many ranks learn together

    def __init__(self, part: WidePart, table: AnyTable, schema: Schema) -> None:
        """ValueError if the table is not in the host's memory."""
        if table.ops.device != "cpu":
            raise ValueError(
                'the wide part is learned on the CPU so far: set [model] wide = false, or [train] device = "cpu"'
            )
        self.part, self.table, self.schema = part, table, schema
        self.arrays = part.arrays  # over the memory of the part's buffers, which stays: they are restored in place
        self.num_labels = len(schema.labels)
        self.is_value_L = np.array([link != "logit" for link in schema.label_links])  # the net's alone
        self.num_crosses = 0  # rows that the newest batch looked up
        self.crosses = table.tables.get(CROSSES_TABLE)
        if self.crosses is None and part.get_buffer("pair_is_live_P").numel():
            raise ValueError("the wide part crosses fields, and there is no table for their rows")
        self.crosses_of_all: EmbeddingTable | ShardedTable | None = self.crosses  # with the rows of other ranks
        self.columns_from = table.layout.state_width - table.layout.wide_width
        # the factorization machine steps with the rows' own state; other optimizers, and rows of several widths, leave
        # vectors to the net alone
        self.steps_rows = _sums_row_squares(table) and len({one.dim for one in table.model_tables.values()}) == 1

    @staticmethod
    def num_states_of(table: AnyTable) -> int:
        """Return how many of a row's last state columns the step reads: those of the wide part, and before them the
        factorization machine's.
        """
        return table.layout.wide_width + _sums_row_squares(table)

    def max_crosses(self, batch: Batch) -> int:
        """Return the most crosses that this batch may look up, every occurrence."""
        arrays = self.arrays
        most = len(batch) * len(arrays.live_pairs)
        if self.schema.lists:
            pairs_P2 = arrays.pair_fields_P2[arrays.live_pairs]
            counts_NF = num_crossed(self.schema, batch.features).astype(np.float64)
            # of one sample, over all samples; no BLAS product, whose threads would spin for 20 ms afterwards
            counts_FF = np.einsum("nf,ng->fg", counts_NF, counts_NF, optimize=False)
            most = int(counts_FF[pairs_P2[:, 0], pairs_P2[:, 1]].sum())
        return most

    def learn(self, keys: BatchKeys, lookup: Lookup, net_NL: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Score and learn a batch, whose rows are looked up, as an `OffsetStep`; rows are written back at the end."""
        assert keys.numbers is not None
        arrays, batch = self.arrays, keys.batch
        slots = slots_of(self.schema, batch.features).at(lookup.unique.inverse_K)
        rows = self._read_rows(lookup)
        wide_UW = np.ascontiguousarray(rows.states_NS[:, self.columns_from :])
        squares_U = np.ascontiguousarray(rows.states_NS[:, 0]) if self.steps_rows else np.zeros(0, np.float32)
        found = _Rows.of(lookup, slots, wide_UW, arrays, self.num_labels, born_together=self.is_of_ranks)
        logits_NL, errors_NL = np.zeros((len(batch), self.num_labels)), np.zeros_like(net_NL)
        wide_batch = WideBatch(
            slots.rows_S,
            slots.fields_S,
            slots.offsets_N1,
            keys.numbers.x_NX,
            net_NL,
            np.where(self.is_value_L, np.float32(np.nan), batch.labels_NL),
            batch.weights_N,
            rows.values_ND,
            squares_U,
            wide_UW,
            rows.counts_N,
        )
        crossed = self._learn_in_ranges(keys, wide_batch, slots, found, logits_NL, errors_NL)
        logits_NL[:, self.is_value_L] = net_NL[:, self.is_value_L]
        self.num_crosses = sum(len(cross_lookup.unique.ids_U) for cross_lookup in crossed)
        for cross_lookup in crossed:
            assert self.crosses_of_all is not None
            self.crosses_of_all.touch(cross_lookup)
        arrays.number_statistics_3D[...] = keys.numbers.after_3D
        states_US = rows.states_NS
        states_US[:, self.columns_from :] = wide_UW
        if self.steps_rows:
            states_US[:, 0] = squares_U
        self._write_rows(lookup, rows.values_ND, states_US, slots)
        return logits_NL.astype(np.float32), errors_NL

    def _learn_in_ranges(
        self,
        keys: BatchKeys,
        batch: WideBatch,
        slots: Slots,
        found: "_Rows",
        logits_NL: npt.NDArray[np.float64],
        errors_NL: Float32Array,
    ) -> list[Any]:
        """Learn a part of the batch after the other: as far as one look-up of crosses reaches, or to the next choice.

        Returns the look-ups of crosses.
        """
        arrays, potential_N, crossed = self.arrays, potential_crosses(slots.num_crossed_NF), list[Any]()
        lr, start, num_samples = FACTORIZATION_RATE * self.table.step_lr, 0, len(slots.offsets_N1) - 1
        while (end := self._next_end(start, num_samples, is_first=not crossed)) is not None:
            ids_C, pairs_C, offsets_R1, stop = crosses_of(
                slots.rows_S,
                slots.crossed_from_NF,
                slots.num_crossed_NF,
                arrays.pair_fields_P2,
                arrays.live_pairs,
                found.usable_from_U,
                found.hashes_U,
                start,
                end,
                MAX_CROSSES,
            )
            weights_Q2L, rows_C = np.zeros((0, 2 * self.num_labels), np.float32), ids_C
            is_crossed = len(ids_C) > 0 or (self.is_of_ranks and self.crosses is not None)
            if is_crossed:
                samples_C = np.repeat(np.arange(start, stop), np.diff(offsets_R1))
                lookup, columns = self._look_up(keys, ids_C, samples_C)
                crossed.append(lookup)
                weights_Q2L = columns.values_ND.copy()
                rows_C = lookup.unique.inverse_K
            crosses = CrossBatch(start, stop, rows_C, pairs_C, offsets_R1, potential_N, weights_Q2L)
            in_order_pass(batch, crosses, self.arrays, lr, FACTORIZATION_EPS, logits_NL, errors_NL)
            if is_crossed:
                self._write_crosses(lookup, columns, weights_Q2L)
            if not self.is_of_ranks:
                self._choose_pairs()
            start = stop
        return crossed

    # what differs where many ranks learn together

    def _read_rows(self, lookup: Any) -> RowColumns:
        return self.table.rows.read_rows(lookup)

    def _write_rows(self, lookup: Any, values_UD: Float32Array, states_US: Float32Array, slots: Slots) -> None:
        """Write the rows back; `slots` are those of the whole batch."""
        self.table.rows.write_rows(lookup, values_UD, states_US)

    def _next_end(self, start: int, num_samples: int, *, is_first: bool) -> int | None:
        """Return until where samples from `start` on are learned at once, None at the end.

        `is_first`: no crosses are looked up yet.
        """
        if start >= num_samples:
            return None
        arrays = self.arrays
        if int(arrays.pair_is_live_P.sum()) <= self.part.max_pairs:
            return num_samples  # pairs are not chosen while few live
        return min(num_samples, start + max(1, CHOICE_SAMPLES - int(arrays.slot_totals_4[3])))

    def _choose_pairs(self) -> None:
        """Where more pairs live than may stay: once in a while drop those that gained least, at most half of them."""
        arrays, live_P = self.arrays, self.arrays.live_pairs
        if len(live_P) <= self.part.max_pairs or arrays.slot_totals_4[3] < CHOICE_SAMPLES:
            return
        arrays.slot_totals_4[3] = 0
        keep = max(self.part.max_pairs, len(live_P) // 2)
        order = np.argsort(-arrays.pair_gains_P[live_P], kind="stable")
        arrays.pair_is_live_P[live_P[order[keep:]]] = 0

    def _look_up(
        self, keys: BatchKeys, ids_C: npt.NDArray[np.int64], samples_C: npt.NDArray[np.int64]
    ) -> tuple[Lookup, RowColumns]:
        """Look up rows of crosses, whose values are weight and information of label 0, then of label 1, ..."""
        assert self.crosses_of_all is not None
        features_C, event_ms_C = np.full(len(ids_C), CROSSES, np.uint16), keys.batch.event_ms_N[samples_C]
        lookup = self.crosses_of_all.lookup(features_C, ids_C, event_ms_C)
        columns = self._read_crosses(lookup)
        columns.values_ND[columns.counts_N == 0] = 0.0  # a first value of scale zero may be -0.0: servers score +0.0
        return lookup, columns

    def _read_crosses(self, lookup: Any) -> RowColumns:
        assert self.crosses is not None
        return self.crosses.read_rows(lookup)

    def _write_crosses(self, lookup: Any, columns: RowColumns, weights_Q2L: Float32Array) -> None:
        assert self.crosses is not None
        self.crosses.write_rows(lookup, weights_Q2L, columns.states_NS)


def _sums_row_squares(table: AnyTable) -> bool:
    """Return True if the first state of every row that the net sees is the sum of its squared gradients."""
    return all(OPTIMIZERS[one.optimizer.name].sums_row_squares for one in table.model_tables.values())


class _Rows(NamedTuple):
    """The parts of crosses, of each row."""

    usable_from_U: npt.NDArray[np.int64]  # the first sample of the batch that finds the row used before
    hashes_U: npt.NDArray[np.uint64]

    @staticmethod
    def of(
        lookup: Lookup,
        slots: Slots,
        wide_UW: Float32Array,
        arrays: WideParameters,
        num_labels: int,
        *,
        born_together: bool,
    ) -> "_Rows":
        """Note when rows are used first, also in their column `born`.

        `born_together`: new rows are born with the batch's first sample, since other ranks' samples have no order.
        """
        unique, num_samples = lookup.unique, len(slots.offsets_N1) - 1
        first_U = first_samples(slots.rows_S, slots.offsets_N1, len(unique.ids_U))
        born_U = wide_UW[:, born_column(num_labels)]
        is_new_U = (born_U == 0) & (first_U < num_samples)
        usable_from_U = np.where(born_U > 0, -1, first_U + 1)
        samples_before_U = np.zeros_like(first_U) if born_together else first_U
        born_U[is_new_U] = born_of(int(arrays.num_samples_1[0]) + samples_before_U[is_new_U])
        return _Rows(usable_from_U, row_hashes(unique.features_U.astype(np.int64), unique.ids_U, born_U))
