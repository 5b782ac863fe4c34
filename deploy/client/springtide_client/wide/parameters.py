"""The wide part's own arrays, which a version carries as `dense.wide.*`: gates, weights of groups, statistics."""

# L labels, F fields, P pairs of fields, T types of slots (F + P), B buckets, X numbers of a sample, D dense features
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide_client.array_types import Int64Array
from springtide_client.wide.fields import Float64Array, WideFields
from springtide_client.wide.layout import NUM_BUCKETS
from springtide_client.wide.slots import pairs_to_try

PREFIX = "wide."
MAX_PAIRS = 1024  # that live at first; pairs grow with the square of the fields
# the parts of a score, in the order in which they are added
FIRST_ORDER, CROSSED, NUMBERS, FACTORIZED, NET, SEEN = range(6)
NUM_GROUPS = 6
PLAIN_FIRST_ORDER, PLAIN_NUMBERS = range(2)  # those of the plain learner

PRIOR_CLICKS, PRIOR_SAMPLES = 1.0, 4.0
PRIOR_BIAS_INFORMATION = 100.0
PRIOR_GROUP_INFORMATION = 100.0 / 3
NO_BIAS = np.zeros(1, np.int64)


class WideParameters(NamedTuple):
    """Arrays that change with every sample. Training writes them in place; views hold those of one version."""

    num_samples_1: Int64Array  # learned since the log began
    numbers_F: Int64Array  # feature numbers of the fields that the other arrays are ordered by
    pair_fields_P2: Int64Array
    pair_is_live_P: npt.NDArray[np.uint8]
    pair_gains_P: Float64Array  # what a pair has contributed to lower loss
    slot_totals_4: Float64Array  # samples, first-order slots, crosses if all pairs lived, samples until the next choice
    number_statistics_3D: Float64Array  # mean, variance, count
    seen_statistics_3F: Float64Array  # of bit lengths of counts: mean, variance, count
    clicks_L: Float64Array
    samples_L: Float64Array
    base_L: Float64Array  # the logit of clicks over samples
    bias_L: Float64Array
    bias_information_L: Float64Array
    group_weights_LG: Float64Array
    group_information_LG: Float64Array
    gates_LTB: Float64Array
    gate_information_LTB: Float64Array
    number_weights_LX: Float64Array
    number_information_LX: Float64Array
    seen_weights_LF2: Float64Array  # of how often the id was seen, and of never
    seen_information_LF2: Float64Array
    plain_bias_L: Float64Array
    plain_bias_information_L: Float64Array
    plain_group_weights_L2: Float64Array
    plain_group_information_L2: Float64Array
    plain_number_weights_LX: Float64Array
    plain_number_information_LX: Float64Array
    loss_difference_L: Float64Array  # summed loss of the plain learner less that of the other
    mixture_L: Float64Array  # weight of the other in the mixture
    num_bias_1: Int64Array = NO_BIAS  # of the last fields: WideFields.num_bias; versions without such fields lack it

    @staticmethod
    def initial(wide_fields: WideFields, num_dense: int, num_labels: int, *, crosses: int = 64) -> "WideParameters":
        """Return the arrays before the first sample.

        `crosses`: the pairs that stay, at most. All live at first, of many fields MAX_PAIRS, or `crosses` if more.
        """
        num_fields = len(wide_fields)
        pairs_P2 = (
            pairs_to_try(wide_fields.numbers_F, max(MAX_PAIRS, crosses), wide_fields.num_bias)
            if crosses
            else np.zeros((0, 2), np.int64)
        )
        num_pairs, num_numbers = len(pairs_P2), 2 * num_dense

        def zeros(*shape: int) -> Float64Array:
            return np.zeros((num_labels, *shape))

        def full(value: float, *shape: int) -> Float64Array:
            return np.full((num_labels, *shape), value)

        types = num_fields + num_pairs, NUM_BUCKETS
        return WideParameters(
            num_samples_1=np.zeros(1, np.int64),
            numbers_F=wide_fields.numbers_F,
            pair_fields_P2=pairs_P2,
            pair_is_live_P=np.ones(num_pairs, np.uint8),
            pair_gains_P=np.zeros(num_pairs),
            slot_totals_4=np.zeros(4),
            number_statistics_3D=np.repeat([[0.0], [1.0], [0.0]], num_dense, axis=1),
            seen_statistics_3F=np.repeat([[0.0], [1.0], [0.0]], num_fields, axis=1),
            clicks_L=full(PRIOR_CLICKS),
            samples_L=full(PRIOR_SAMPLES),
            base_L=full(float(np.log(PRIOR_CLICKS / (PRIOR_SAMPLES - PRIOR_CLICKS)))),
            bias_L=zeros(),
            bias_information_L=full(PRIOR_BIAS_INFORMATION),
            group_weights_LG=full(1.0, NUM_GROUPS),
            group_information_LG=full(PRIOR_GROUP_INFORMATION, NUM_GROUPS),
            gates_LTB=full(1.0, *types),
            gate_information_LTB=zeros(*types),
            number_weights_LX=zeros(num_numbers),
            number_information_LX=zeros(num_numbers),
            seen_weights_LF2=zeros(num_fields, 2),
            seen_information_LF2=zeros(num_fields, 2),
            plain_bias_L=zeros(),
            plain_bias_information_L=full(PRIOR_BIAS_INFORMATION),
            plain_group_weights_L2=full(1.0, 2),
            plain_group_information_L2=full(PRIOR_GROUP_INFORMATION, 2),
            plain_number_weights_LX=zeros(num_numbers),
            plain_number_information_LX=zeros(num_numbers),
            loss_difference_L=zeros(),
            mixture_L=full(0.5),
            num_bias_1=np.array([wide_fields.num_bias]),
        )

    @staticmethod
    def of(tensors: Mapping[str, npt.NDArray[Any]]) -> "WideParameters | None":
        """Return the arrays of a version from its dense tensors by name (`wide.base_L`); None: it has no wide part.

        KeyError if some of them are missing.
        """
        if f"{PREFIX}base_L" not in tensors:
            return None
        defaults = WideParameters._field_defaults
        names = [name for name in WideParameters._fields if name not in defaults or PREFIX + name in tensors]
        return WideParameters(**{name: tensors[PREFIX + name] for name in names})

    def named(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name, without the prefix, as versions have them."""
        named = self._asdict()
        if not self.num_bias_1[0]:
            del named["num_bias_1"]  # as before bias fields were an option
        return named

    @property
    def num_labels(self) -> int:
        return len(self.base_L)

    @property
    def live_pairs(self) -> npt.NDArray[np.intp]:
        """The numbers of the pairs whose crosses are in use, ascending."""
        return np.flatnonzero(self.pair_is_live_P)

    @property
    def mean_slots(self) -> float:
        """First-order slots of a sample, on average so far: F."""
        samples, first_order = self.slot_totals_4[:2]
        return max(1.0, float(first_order / samples)) if samples > 0 else float(max(1, len(self.numbers_F)))

    @property
    def factorization_scale(self) -> float:
        """(6 / F) ** 1.5, by operations that every processor rounds alike."""
        ratio = 6.0 / self.mean_slots
        return float(ratio * np.sqrt(ratio))
