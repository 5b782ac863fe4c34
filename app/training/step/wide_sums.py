"""Sums over many ranks for the wide part's own arrays: see wide_ranks for what is added to weights."""

# L labels, D dense features, F fields, P pairs of fields
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from springtide.embeddings.sharding.exchange import Exchange
from springtide.kernels.cpu.wide import in_order, prepare
from springtide.kernels.cpu.wide.score import GATE_PRIOR, Strengths

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
    def of(before: Arrays, after: Arrays, strengths: Strengths, counts_3: Float64Array) -> "ArraySums":
        """From the arrays before and after a rank's samples; `counts_3`: its samples, slots and potential crosses."""
        sums: dict[str, Float64Array] = {"counts": counts_3, "num_ranks": np.array([float(counts_3[0] > 0)])}
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
