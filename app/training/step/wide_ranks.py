"""The wide part's step of many ranks: each walks over its own samples, as the one-by-one learner that it is, and what
all have learned is joined as if they had learned from each other.

A weight that holds information I is moved by a sample by about error / I. So a rank that has moved it by d, and brought
its information to I, has seen errors of about d * I; with the errors of all ranks added up, and the information of all,
the weight moves by sum(d * I) / (sum of information). Of one rank this is d. Ranks that learn the same thing of a new
row do not overshoot, and of a row that is well known their moves add up.
"""

# N samples, U rows, Q rows of crosses, D dimension (of statistics: dense features), S states, L labels, F fields
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from springtide.app.models.wide_part import WidePart
from springtide.app.training.step.wide_step import FACTORIZATION_EPS, Float32Array, HostRows, PreparedBatch, WideStep
from springtide.embeddings.collection import AnyTable
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.row_format import Precision
from springtide.embeddings.sharding.sharded_table import ShardedLookup, ShardedTable
from springtide.kernels.cpu.wide import in_order, prepare
from springtide.kernels.cpu.wide.score import (
    COLUMNS,
    GATE_PRIOR,
    INFORMATION,
    PLAIN_SQUARES,
    PLAIN_WEIGHT,
    WEIGHT,
    Strengths,
    strengths_of,
)
from springtide.kernels.types import RowColumns
from springtide.stream.negatives import NegativeSampling
from springtide_client.keys import CROSSES
from springtide_client.schema import Schema
from springtide_client.wide.layout import born_of

Arrays = Mapping[str, npt.NDArray[Any]]
Float64Array = npt.NDArray[np.float64]


class Weights(NamedTuple):
    """Weights, and the information that each holds."""

    name: str
    information: str
    most: float  # information
    strength: str = ""  # of Strengths: what holds them at zero
    range: tuple[float, float] | None = None


class Statistics(NamedTuple):
    """A running mean and variance, and how many values it remembers."""

    name: str
    most: float  # values
    prior: float = 0.0  # values that the first variance, 1, is worth beside those seen; 0: it is the first value's


GROUP_RANGE = in_order.MIN_GROUP_WEIGHT, in_order.MAX_GROUP_WEIGHT
WEIGHTS = (
    Weights("gates_LTB", "gate_information_LTB", in_order.MAX_INFORMATION, range=(0.0, in_order.MAX_GATE)),
    Weights("bias_L", "bias_information_L", in_order.MAX_SHARED_INFORMATION),
    Weights("plain_bias_L", "plain_bias_information_L", in_order.MAX_SHARED_INFORMATION),
    Weights("group_weights_LG", "group_information_LG", in_order.MAX_SHARED_INFORMATION, range=GROUP_RANGE),
    Weights("plain_group_weights_L2", "plain_group_information_L2", in_order.MAX_SHARED_INFORMATION, range=GROUP_RANGE),
    Weights("number_weights_LX", "number_information_LX", in_order.MAX_SHARED_INFORMATION, "number"),
    Weights("plain_number_weights_LX", "plain_number_information_LX", in_order.MAX_SHARED_INFORMATION, "number"),
    Weights("seen_weights_LF2", "seen_information_LF2", in_order.MAX_SHARED_INFORMATION, "seen"),
)
STATISTICS = (
    Statistics("number_statistics_3D", prepare.MAX_COUNT),
    Statistics("seen_statistics_3F", in_order.MAX_COUNT, prior=in_order.SEEN_PRIOR),
)
ADDED = ("pair_gains_P", "clicks_L", "samples_L", "loss_difference_L")
KNOWN_PART = 0.1  # of the most information: a weight that holds so much is well known


def part_of_sum(
    before: npt.NDArray[Any],
    added: npt.NDArray[Any],
    num_ranks: npt.NDArray[Any] | int,
    strength: float,
    most: float,
    slots: float,
) -> npt.NDArray[Any]:
    """Return what part of `num_ranks` ranks' summed moves a weight makes: less than 1 if it is well known and frequent.

    Such weights, of a sample's `slots`, share its error, and every rank meets that error again and again: by itself it
    corrects 1 - exp(-x / m) of it within a step, all m ranks as one would correct 1 - exp(-x), but the sum of their
    moves is m times the first, and above twice the error it runs away. x: the information added over that held, times
    the weights that share the error, two a slot. At the most information what was added is not known: then x is taken
    as endless, and the ranks' mean remains.
    """
    held = strength + np.maximum(before, KNOWN_PART * most)
    alone = strength + np.minimum(before + added / num_ranks, most)
    by_information = alone / (strength + np.minimum(before + added, most))
    x = np.maximum(2.0 * slots * added / held, 1e-9)
    by_error = np.where(before < most, np.expm1(-x) / (num_ranks * np.expm1(-x / num_ranks)), 1.0 / num_ranks)
    return np.where(before < KNOWN_PART * most, 1.0, np.minimum(by_error / by_information, 1.0))


@dataclass(frozen=True)
class ArraySums:
    """Additions to the arrays by one rank, later by all."""

    sums: dict[str, Float64Array]

    @staticmethod
    def of(
        before: Arrays, after: Arrays, strengths: Strengths, counts_3: Float64Array, *, has_samples: bool
    ) -> "ArraySums":
        """From the arrays before and after a rank's samples; `counts_3`: the samples, slots and potential crosses of
        those whose ids count.
        """
        sums: dict[str, Float64Array] = {"counts": counts_3, "num_ranks": np.array([float(has_samples)])}
        for weights in WEIGHTS:
            held = _strength_of(weights, strengths) + after[weights.information]
            sums[weights.name] = held * (after[weights.name] - before[weights.name])
            sums[weights.information] = after[weights.information] - before[weights.information]
        for name, _, prior in STATISTICS:
            moments = _moments(after[name], prior) - _moments(before[name], prior)
            begun = (before[name][2:] == 0) & (after[name][2:] > 0)
            sums[name] = np.concatenate([moments, begun])
        return ArraySums(sums | {name: after[name] - before[name] for name in ADDED})

    def all_reduce(self, exchange: Exchange) -> None:
        """Replace them by their sums over all ranks."""
        flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in self.sums.values()]))
        exchange.all_reduce("wide arrays", flat)
        sizes = [array.size for array in self.sums.values()]
        for array, part in zip(self.sums.values(), torch.split(flat, sizes), strict=True):
            array[...] = part.numpy().reshape(array.shape)

    def write(self, before: Arrays, arrays: Arrays, strengths: Strengths) -> None:
        """Write the arrays that follow those from before the step."""
        sums = self.sums
        num_ranks = max(1, int(sums["num_ranks"][0]))
        for weights in WEIGHTS:
            strength, held, added = (
                _strength_of(weights, strengths),
                before[weights.information],
                sums[weights.information],
            )
            part = part_of_sum(held, added, num_ranks, strength, weights.most, strengths.number)
            information = np.minimum(held + added, weights.most)
            arrays[weights.information][...] = information
            moved = before[weights.name] + part * sums[weights.name] / (strength + information)
            if weights.range is not None:
                moved = moved.clip(*weights.range)
            arrays[weights.name][...] = np.where(sums[weights.name] == 0, before[weights.name], moved)
        for statistics in STATISTICS:
            name = statistics.name
            _write_statistics(arrays[name], _moments(before[name], statistics.prior), sums[name], statistics)
        arrays["pair_gains_P"][...] = before["pair_gains_P"] + sums["pair_gains_P"]
        _write_mixture(arrays, before["loss_difference_L"] + sums["loss_difference_L"])
        _write_rates(arrays, before["clicks_L"] + sums["clicks_L"], before["samples_L"] + sums["samples_L"])
        num_samples, num_slots, num_crosses = sums["counts"]
        arrays["num_samples_1"][...] = before["num_samples_1"] + int(num_samples)
        totals_4 = before["slot_totals_4"] + [num_samples, num_slots, num_crosses, num_samples]
        if totals_4[0] >= 2 * in_order.MAX_COUNT:
            totals_4[:3] *= 0.5
        arrays["slot_totals_4"][...] = totals_4


def _strength_of(weights: Weights, strengths: Strengths) -> float:
    if weights.strength:
        return float(getattr(strengths, weights.strength))
    return GATE_PRIOR if weights.name == "gates_LTB" else 0.0


def _moments(statistics_3F: Float64Array, prior: float) -> Float64Array:
    """Return sums that values add to: of values, of squares, and their number."""
    mean_F, variance_F, count_F = statistics_3F
    return np.stack([count_F * mean_F, (count_F + prior) * variance_F + count_F * mean_F**2, count_F])


def _write_statistics(
    statistics_3F: Float64Array, before_3F: Float64Array, sums_4F: Float64Array, statistics: Statistics
) -> None:
    sums_F, squares_F, counts_F = before_3F + sums_4F[:3]
    if not statistics.prior:
        squares_F -= np.maximum(sums_4F[3] - 1.0, 0.0)  # each rank that began has begun with the first variance
    known_F = counts_F > 0
    counts_F, held_F = np.maximum(counts_F, 1.0), np.maximum(counts_F + statistics.prior, 1.0)
    mean_F = sums_F / counts_F
    variance_F = np.maximum(squares_F - counts_F * mean_F**2, 0.0) / held_F
    written_3F = np.stack([mean_F, variance_F, np.minimum(counts_F, statistics.most)])
    statistics_3F[...] = np.where(known_F, written_3F, np.array([[0.0], [1.0], [0.0]]))


def _write_mixture(arrays: Arrays, difference_L: Float64Array) -> None:
    difference_L = difference_L.clip(-in_order.MAX_LOSS_DIFFERENCE, in_order.MAX_LOSS_DIFFERENCE)
    arrays["loss_difference_L"][...] = difference_L
    arrays["mixture_L"][...] = 1.0 / (1.0 + np.exp(-in_order.MIXTURE_RATE * difference_L))


def _write_rates(arrays: Arrays, clicks_L: Float64Array, samples_L: Float64Array) -> None:
    rest_L = np.minimum(1.0, in_order.MEMORY / samples_L)
    clicks_L, samples_L = clicks_L * rest_L, samples_L * rest_L
    clicks_L = np.maximum(np.minimum(clicks_L, samples_L - in_order.PRIOR_OTHERS), in_order.PRIOR_CLICKS)
    arrays["clicks_L"][...], arrays["samples_L"][...] = clicks_L, samples_L
    arrays["base_L"][...] = np.log(clicks_L / (samples_L - clicks_L))


NONE = np.zeros(0, np.int64)


class RanksWideStep(WideStep):
    """Rows and crosses are at their owners, where what the ranks add is summed; the part's own arrays are summed too.

    The samples of all ranks have no order: pairs are chosen after them, and rows that are new in them are born
    together.
    """

    is_of_ranks = True

    def __init__(
        self,
        part: WidePart,
        table: AnyTable,
        schema: Schema,
        rows: ShardedTable,
        *,
        negatives: NegativeSampling | None = None,
        by_request: bool = False,
    ) -> None:
        """ValueError if the table is not in the host's memory."""
        if table.ops.device != "cpu":
            raise ValueError(
                "several ranks learn the wide part on the CPU only so far: set [model] wide = false, or [train] "
                'device = "cpu"'
            )
        super().__init__(part, table, schema, negatives=negatives, by_request=by_request)
        self.rows, self.exchange = rows, rows.exchange
        self.columns_from = rows.num_states - table.layout.wide_width
        if self.crosses is not None:
            self.sharded_crosses = ShardedTable([self.crosses], self.exchange, Precision(), seed=0, keeps_columns=True)
            self.crosses_of_all = self.sharded_crosses
        self._rows_before: tuple[Float32Array, Float32Array]  # of a step
        self._arrays_before: dict[str, npt.NDArray[Any]]
        self._strengths: Strengths
        self._born: np.float32

    def _start_reading(self, lookup: ShardedLookup) -> Callable[[], HostRows]:
        arrays, unique = self.arrays, lookup.unique
        self._strengths = strengths_of(self.arrays, int(arrays.pair_is_live_P.sum()))
        self._born = born_of(arrays.num_samples_1)[0]
        self._arrays_before = {name: array.copy() for name, array in arrays.named().items()}
        self._rows_before = before_UD, before_US = lookup.rows_UD.detach().numpy(), lookup.states_US.numpy()
        counts_U = lookup.counts_U.numpy().reshape(-1).astype(np.int64)
        columns = RowColumns(before_UD.copy(), before_US.copy(), counts_U, NONE, NONE)
        return lambda: HostRows(unique.features_U, unique.ids_U, unique.inverse_K, columns)

    def _write_rows(
        self, lookup: ShardedLookup, values_UD: Float32Array, states_US: Float32Array, prepared: PreparedBatch
    ) -> None:
        """Sum what the ranks add to rows at their owners, and to the part's own arrays everywhere."""
        before_UD, before_US = self._rows_before
        added_US, added_UD = states_US - before_US, values_UD - before_UD
        first, strengths = self.columns_from, self._strengths
        for label in range(self.num_labels):
            at = first + COLUMNS * label
            added_US[:, at + WEIGHT] *= strengths.first + states_US[:, at + INFORMATION]
            added_US[:, at + PLAIN_WEIGHT] *= np.sqrt(states_US[:, at + PLAIN_SQUARES]) + in_order.PLAIN_EPS
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
                    held_U, added_U, num_ranks_U, strengths.first, in_order.MAX_INFORMATION, strengths.number
                ).astype(np.float32)
                least_U = np.minimum(least_U, part_U)
                information_U = np.minimum(held_U + added_U, np.float32(in_order.MAX_INFORMATION))
                states[:, at + INFORMATION] = information_U
                states[:, at + WEIGHT] += part_U * sums_US[:, at + WEIGHT] / (strengths.first + information_U)
                squares_U = np.maximum(states[:, at + PLAIN_SQUARES] + sums_US[:, at + PLAIN_SQUARES], 0)
                states[:, at + PLAIN_SQUARES] = squares_U
                moves_U = sums_US[:, at + PLAIN_WEIGHT] / (np.sqrt(squares_U) + in_order.PLAIN_EPS)
                states[:, at + PLAIN_WEIGHT] += part_U * moves_U
            is_born_U = (states[:, -1] == 0) & (sums_US[:, -1] > 0)
            states[is_born_U, -1] = self._born
            if self.steps_rows:
                states[:, 0] = _summed_squares(states[:, 0], sums_US[:, 0])
                moves_UD = np.nan_to_num(sums_UD) / (np.sqrt(states[:, :1]) + FACTORIZATION_EPS)
                columns.values_ND[...] += least_U[:, None] * moves_UD
            table.write_rows(own, columns.values_ND, columns.states_NS)
        batch, potential_N = prepared.keys.batch, prepared.potential_N
        counted_N = slice(None) if batch.is_counted_N is None else batch.is_counted_N
        num_slots_N = np.diff(prepared.slots.offsets_N1)[counted_N]
        counts_3 = np.array([len(num_slots_N), num_slots_N.sum(), potential_N[counted_N].sum()], np.float64)
        array_sums = ArraySums.of(
            self._arrays_before, self.arrays.named(), strengths, counts_3, has_samples=len(batch) > 0
        )
        array_sums.all_reduce(self.exchange)
        array_sums.write(self._arrays_before, self.arrays.named(), strengths)
        self._choose_pairs()

    def _next_end(self, start: int, num_samples: int, *, is_first: bool) -> int | None:
        """All ranks look up crosses equally often: once, for one of them has samples, and as often as one needs."""
        if self.crosses is None:
            has_more = start < num_samples
        else:
            has_more = is_first or not self.exchange.all_true(start >= num_samples)
        return num_samples if has_more else None

    def _look_up_crosses(
        self, ids_C: npt.NDArray[np.int64], event_ms_C: npt.NDArray[np.int64]
    ) -> tuple[ShardedLookup, RowColumns, Float32Array]:
        features_C = np.full(len(ids_C), CROSSES, np.uint16)
        lookup = self.sharded_crosses.lookup(features_C, ids_C, event_ms_C)
        values_QV = lookup.rows_UD.detach().numpy() + np.float32(0)  # what is -0.0 is 0.0 then
        columns = RowColumns(values_QV, NONE, NONE, NONE, NONE)
        return lookup, columns, values_QV.copy()

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
            held_QL, added_QL, num_ranks_Q[:, None], strengths.cross, in_order.MAX_INFORMATION, strengths.number
        ).astype(np.float32)
        information_QL = np.minimum(held_QL + added_QL, np.float32(in_order.MAX_INFORMATION))
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
