"""A view's wide prediction, compiled: the same bits as springtide_client.wide.score.NUMPY_STEPS."""

# N samples, S slots, C crosses of all samples, U rows, K keys, D dense features (of a row: dimension), F fields,
# W columns of the wide part, L labels (of offsets: list features), X numbers of a sample
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.kernels.cpu.wide.arrays import (
    ALL_COUNTED,
    NO_SHARES,
    NO_WEIGHTS,
    NONE_SETTLED,
    CrossBatch,
    WideBatch,
)
from springtide.kernels.cpu.wide.prepare import (
    cross_weights,
    crosses_of,
    fields_of,
    list_offsets,
    row_hash,
    sample_slots,
)
from springtide.kernels.cpu.wide.score import score_samples
from springtide.kernels.njit import njit
from springtide_client.array_types import Float32Array, Int64Array, UInt16Array
from springtide_client.features import Features
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema
from springtide_client.wide.fields import Float64Array, signed_logs
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.score import WideRows, WideSteps
from springtide_client.wide.slots import CrossSlots, Slots, slot_weights

ALL_CROSSES = 1 << 62


def compiled_numbers(dense_ND: Float32Array, statistics_3D: Float64Array) -> tuple[Float64Array, Int64Array]:
    """Return standardized numbers (N, X) and bins (N, D), as springtide_client.wide.score.numbers_and_bins does."""
    x_NX, bins_ND = _numbers(signed_logs(dense_ND), statistics_3D)
    return x_NX, bins_ND


class CompiledSlots:
    """Remembers the fields of the schema that it was called with last."""

    def __init__(self) -> None:
        self._known: tuple[Schema | None, Int64Array] = None, np.empty((0, 3), np.int64)

    def __call__(
        self,
        schema: Schema,
        features: Features,
        parameters: WideParameters,
        features_K: UInt16Array,
        ids_K: Int64Array,
        wide_KW: Float32Array,
    ) -> tuple[Slots, CrossSlots]:
        """Return slots and crosses, as springtide_client.wide.score.slots_and_crosses does."""
        known, fields_F3 = self._known
        if known is not schema:
            fields_F3 = fields_of(schema)
            self._known = schema, fields_F3
        own, found, usable_from_K = _slots_and_crosses(
            fields_F3,
            features.categorical_NC.shape[1],
            len(schema.dense) + len(schema.bias),
            list_offsets(features),
            parameters.pair_fields_P2,
            parameters.pair_is_live_P,
            features_K,
            ids_K,
            wide_KW,
        )
        slots, crosses = Slots(*own), CrossSlots(*found)
        weights_S = slot_weights(schema, features, slots.fields_S) if schema.weighted else None
        if weights_S is None:
            return slots, crosses
        pairs = parameters.pair_fields_P2, parameters.pair_is_live_P
        weights_C = cross_weights(
            *(weights_S, slots.rows_S, slots.crossed_from_NF, slots.num_crossed_NF),
            *(*pairs, usable_from_K, 0, len(crosses.ids_C)),
        )
        return slots._replace(weights_S=weights_S), crosses._replace(weights_C=weights_C)


@njit(nogil=True, cache=True)
def _numbers(logs_ND: Any, statistics_3D: Any) -> Any:
    num_samples, num_dense = logs_ND.shape
    x_NX, bins_ND = np.zeros((num_samples, 2 * num_dense)), np.empty((num_samples, num_dense), np.int64)
    for d in range(num_dense):
        mean, count, scale = statistics_3D[0, d], statistics_3D[2, d], math.sqrt(statistics_3D[1, d] + 1e-4)
        for n in range(num_samples):
            value = logs_ND[n, d]
            if math.isnan(value):
                x_NX[n, 2 * d + 1] = 1.0
                bins_ND[n, d] = MISSING_ID
                continue
            x = 0.0
            if count > 0.0:
                x = min(max((value - mean) / scale, -5.0), 5.0)
            x_NX[n, 2 * d] = x
            bins_ND[n, d] = np.int64(math.floor(x * 2.0))
    return x_NX, bins_ND


@njit(nogil=True, cache=True)
def _slots_and_crosses(
    fields_F3: Any,
    num_categorical: Any,
    num_dense: Any,
    offsets_PN1: Any,
    pair_fields_P2: Any,
    pair_is_live_P: Any,
    features_K: Any,
    ids_K: Any,
    wide_KW: Any,
) -> Any:
    rows_S, fields_S, offsets_N1, crossed_from_NF, num_crossed_NF = sample_slots(
        fields_F3, num_categorical, num_dense, offsets_PN1
    )
    num_samples = len(offsets_N1) - 1
    num_keys, born_column = wide_KW.shape[0], wide_KW.shape[1] - 1
    hashes_K, usable_from_K = np.empty(num_keys, np.uint64), np.empty(num_keys, np.int64)
    for k in range(num_keys):
        born = wide_KW[k, born_column]
        hashes_K[k] = row_hash(features_K[k], ids_K[k], born)
        usable_from_K[k] = -1 if born != 0 else num_samples
    ids_C, pairs_C, cross_offsets_N1, _ = crosses_of(
        rows_S,
        crossed_from_NF,
        num_crossed_NF,
        pair_fields_P2,
        pair_is_live_P,
        usable_from_K,
        hashes_K,
        0,
        num_samples,
        ALL_CROSSES,
    )
    slots = rows_S, fields_S, offsets_N1, crossed_from_NF, num_crossed_NF
    return slots, (ids_C, pairs_C, cross_offsets_N1), usable_from_K


def compiled_score(
    parameters: WideParameters,
    slots: Slots,
    rows: WideRows,
    crosses: CrossSlots,
    cross_rows_C2L: Float32Array,
    x_NX: Float64Array,
    net_NL: npt.NDArray[np.floating],
) -> Float64Array:
    """Return logits, float64 (N, L); arguments as of springtide_client.wide.score.score."""
    logits_NL = np.empty((len(slots.offsets_N1) - 1, parameters.num_labels))
    none, rows_C2L = np.empty(0, np.float32), np.ascontiguousarray(cross_rows_C2L)
    rows_C = np.arange(len(rows_C2L))
    contiguous = np.ascontiguousarray  # one layout of each array: the kernel is compiled once
    batch = WideBatch(
        contiguous(slots.rows_S),
        contiguous(slots.fields_S),
        contiguous(slots.offsets_N1),
        contiguous(x_NX),
        contiguous(net_NL.astype(np.float64)),
        labels_NL=none,
        weights_NL=none,
        counted_N=none,
        offsets_NL=none,
        values_UD=contiguous(rows.values_UD),
        states_US=contiguous(rows.wide_UW),
        counts_U=contiguous(rows.counts_U),
        wide_from=0,
        shares_NL=NO_SHARES,
        is_settled_L=NONE_SETTLED,
        is_counted_N=ALL_COUNTED,
        has_squares=False,
        weights_S=NO_WEIGHTS if slots.weights_S is None else contiguous(slots.weights_S),
    )
    weights_C = NO_WEIGHTS if crosses.weights_C is None else contiguous(crosses.weights_C)
    own = CrossBatch(0, len(logits_NL), rows_C, crosses.pairs_C, crosses.offsets_N1, rows_C, rows_C2L, weights_C)
    score_samples(batch, own, WideParameters(*map(contiguous, parameters)), logits_NL)
    return logits_NL


def compiled_steps() -> WideSteps:
    """Return steps for the views of one follower."""
    return WideSteps(compiled_numbers, CompiledSlots(), compiled_score)
