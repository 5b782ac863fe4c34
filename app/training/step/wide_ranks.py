"""The wide part's step of many ranks: each walks over its own samples, as the one-by-one learner that it is, and what
all have learned is joined as if they had learned from each other.

A weight that holds information I is moved by a sample by about error / I. So a rank that has moved it by d, and brought
its information to I, has seen errors of about d * I; with the errors of all ranks added up, and the information of all,
the weight moves by sum(d * I) / (sum of information). Of one rank this is d. Ranks that learn the same thing of a new
row do not overshoot, and of a row that is well known their moves add up.
"""

# N samples, U rows, Q rows of crosses, D dimension, S states, L labels, W columns of the wide part
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from springtide.app.models.wide.wide_part import WidePart
from springtide.app.training.step.wide_step import FACTORIZATION_EPS, Float32Array, WideStep
from springtide.app.training.step.wide_sums import ArraySums, part_of_sum
from springtide.embeddings.collection import AnyTable
from springtide.embeddings.sharding.row_format import Precision
from springtide.embeddings.sharding.sharded_table import ShardedLookup, ShardedTable
from springtide.kernels.cpu.wide.arrays import WideArrays
from springtide.kernels.cpu.wide.in_order import MAX_INFORMATION, PLAIN_EPS
from springtide.kernels.cpu.wide.prepare import potential_crosses
from springtide.kernels.cpu.wide.score import (
    COLUMNS,
    INFORMATION,
    PLAIN_SQUARES,
    PLAIN_WEIGHT,
    WEIGHT,
    Strengths,
    strengths_of,
)
from springtide.kernels.types import RowColumns
from springtide_client.schema import Schema
from springtide_client.wide.layout import born_of
from springtide_client.wide.slots import Slots

NONE = np.zeros(0, np.int64)


class RanksWideStep(WideStep):
    """Rows and crosses are at their owners, where what the ranks add is summed; the part's own arrays are summed too.

    The samples of all ranks have no order: pairs are chosen after them, and rows that are new in them are born
    together.
    """

    is_of_ranks = True

    def __init__(self, part: WidePart, table: AnyTable, schema: Schema, rows: ShardedTable) -> None:
        super().__init__(part, table, schema)
        self.rows, self.exchange = rows, rows.exchange
        self.columns_from = rows.num_states - table.layout.wide_width
        if self.crosses is not None:
            self.sharded_crosses = ShardedTable([self.crosses], self.exchange, Precision(), seed=0, keeps_columns=True)
            self.crosses_of_all = self.sharded_crosses
        self._rows_before: tuple[Float32Array, Float32Array]  # of a step
        self._arrays_before: dict[str, npt.NDArray[Any]]
        self._strengths: Strengths
        self._born: np.float32

    def _read_rows(self, lookup: ShardedLookup) -> RowColumns:
        arrays = self.part.arrays
        self._strengths = strengths_of(WideArrays(**arrays.named()), int(arrays.pair_is_live_P.sum()))
        self._born = born_of(arrays.num_samples_1)[0]
        self._arrays_before = {name: array.copy() for name, array in arrays.named().items()}
        self._rows_before = before_UD, before_US = lookup.rows_UD.detach().numpy(), lookup.states_US.numpy()
        counts_U = lookup.counts_U.numpy().reshape(-1).astype(np.int64)
        return RowColumns(before_UD.copy(), before_US.copy(), counts_U, NONE, NONE)

    def _write_rows(self, lookup: ShardedLookup, values_UD: Float32Array, states_US: Float32Array) -> None:
        before_UD, before_US = self._rows_before
        added_US, added_UD = states_US - before_US, values_UD - before_UD
        first, strengths = self.columns_from, self._strengths
        for label in range(self.num_labels):
            at = first + COLUMNS * label
            added_US[:, at + WEIGHT] *= strengths.first + states_US[:, at + INFORMATION]
            added_US[:, at + PLAIN_WEIGHT] *= np.sqrt(states_US[:, at + PLAIN_SQUARES]) + PLAIN_EPS
        added_US[:, -1] = states_US[:, -1] != before_US[:, -1]  # born
        if self.steps_rows:
            added_UD *= np.sqrt(states_US[:, :1]) + FACTORIZATION_EPS
        sums = self.rows.sums("wide", lookup, torch.from_numpy(added_UD), torch.from_numpy(added_US))
        owned = zip(self.rows.tables, lookup.lookups_T, lookup.columns_T, _num_ranks_learning(lookup), strict=True)
        for (table, own, columns, num_ranks_U), (sums_UD, sums_US) in zip(owned, sums, strict=True):
            states = columns.states_NS[:, -self.rows.num_states :]
            least_U = np.ones(len(states), np.float32)
            for label in range(self.num_labels):
                at = first + COLUMNS * label
                held_U, added_U = states[:, at + INFORMATION], sums_US[:, at + INFORMATION]
                part_U = part_of_sum(
                    held_U, added_U, num_ranks_U, strengths.first, MAX_INFORMATION, strengths.number
                ).astype(np.float32)
                least_U = np.minimum(least_U, part_U)
                information_U = np.minimum(held_U + added_U, np.float32(MAX_INFORMATION))
                states[:, at + INFORMATION] = information_U
                states[:, at + WEIGHT] += part_U * sums_US[:, at + WEIGHT] / (strengths.first + information_U)
                squares_U = np.maximum(states[:, at + PLAIN_SQUARES] + sums_US[:, at + PLAIN_SQUARES], 0)
                states[:, at + PLAIN_SQUARES] = squares_U
                moves_U = sums_US[:, at + PLAIN_WEIGHT] / (np.sqrt(squares_U) + PLAIN_EPS)
                states[:, at + PLAIN_WEIGHT] += part_U * moves_U
            is_born_U = (states[:, -1] == 0) & (sums_US[:, -1] > 0)
            states[is_born_U, -1] = self._born
            if self.steps_rows:
                states[:, 0] = _summed_squares(states[:, 0], sums_US[:, 0])
                moves_UD = np.nan_to_num(sums_UD) / (np.sqrt(states[:, :1]) + FACTORIZATION_EPS)
                columns.values_ND[...] += least_U[:, None] * moves_UD
            table.write_rows(own, columns.values_ND, columns.states_NS)

    def _has_more(self, start: int, num_samples: int, *, is_first: bool) -> bool:
        """All ranks look up crosses equally often: once, for one of them has samples, and as often as one needs."""
        if self.crosses is None:
            return start < num_samples
        if is_first:
            return True
        return not self.exchange.all_true(start >= num_samples)

    def _samples_until_choice(self) -> int:
        return 1 << 62

    def _end(self, slots: Slots) -> None:
        """Give every rank the arrays of all."""
        before = self._arrays_before
        num_samples = len(slots.offsets_N1) - 1
        counts_3 = np.array([num_samples, len(slots.rows_S), potential_crosses(slots.num_crossed_NF).sum()], np.float64)
        sums = ArraySums.of(before, self.part.arrays.named(), self._strengths, counts_3)
        sums.all_reduce(self.exchange)
        sums.write(before, self.part.arrays.named(), self._strengths)
        self.part.choose_pairs()

    def _read_crosses(self, lookup: ShardedLookup) -> RowColumns:
        values_QV = lookup.rows_UD.detach().numpy() + np.float32(0)  # what is -0.0 is 0.0 then
        return RowColumns(values_QV, NONE, np.ones(len(values_QV), np.int64), NONE, NONE)

    def _write_crosses(self, lookup: ShardedLookup, columns: RowColumns, weights_Q2L: Float32Array) -> None:
        assert self.crosses is not None
        added_Q2L = weights_Q2L - columns.values_ND
        added_Q2L[:, ::2] *= self._strengths.cross + weights_Q2L[:, 1::2]
        none = torch.zeros(len(added_Q2L), 0)
        ((sums_Q2L, _),) = self.sharded_crosses.sums("crosses", lookup, torch.from_numpy(added_Q2L), none)
        (own,) = lookup.columns_T
        (num_ranks_Q,) = _num_ranks_learning(lookup)
        values_Q2L, strengths = own.values_ND, self._strengths
        held_QL, added_QL = values_Q2L[:, 1::2], sums_Q2L[:, 1::2]
        part_QL = part_of_sum(
            held_QL, added_QL, num_ranks_Q[:, None], strengths.cross, MAX_INFORMATION, strengths.number
        ).astype(np.float32)
        information_QL = np.minimum(held_QL + added_QL, np.float32(MAX_INFORMATION))
        values_Q2L[:, 1::2] = information_QL
        values_Q2L[:, ::2] += part_QL * sums_Q2L[:, ::2] / (strengths.cross + information_QL)
        self.crosses.write_rows(lookup.lookups_T[0], values_Q2L, own.states_NS)


def _num_ranks_learning(lookup: ShardedLookup) -> list[npt.NDArray[np.int64]]:
    """Return of each table here how many ranks learn from each unique key of its lookup, (U)."""
    return [np.bincount(own.unique.inverse_K, minlength=len(own.unique.ids_U)) for own in lookup.lookups_T]


def _summed_squares(before_U: Float32Array, sums_U: Float32Array) -> Float32Array:
    """Add what ranks have added to summed squares; where they have forgotten more, all together never forget all."""
    forgotten_U = np.minimum(sums_U, 0) / np.maximum(before_U, np.float32(1e-30))
    squares_U: Float32Array = np.where(sums_U < 0, before_U * np.exp(forgotten_U), before_U + sums_U)
    return squares_U
