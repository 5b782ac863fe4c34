"""The logits of a version with a wide part: rows with its numbers, the net's logits, crosses, the score of all."""

# N samples, L labels, K keys of ids and then of bins, C crosses of all samples
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from springtide_client.array_types import Float32Array, Int64Array, UInt8Array, UInt16Array
from springtide_client.features import Features
from springtide_client.keys import CROSSES
from springtide_client.model.inputs import assemble, lookup_keys
from springtide_client.model.view_table import WideKeys
from springtide_client.rows.search import KNOWN, FoundStates
from springtide_client.wide.bins import Float64Array
from springtide_client.wide.layout import COLUMNS_OF_A_LABEL, INFORMATION, WEIGHT
from springtide_client.wide.score import WideRows
from springtide_client.wide.slots import bin_keys

if TYPE_CHECKING:
    from springtide_client.model.view import View

CROSSES_1 = np.array([CROSSES], np.uint16)


class WidePrediction(NamedTuple):
    """What the deep net and the wide part say of N samples."""

    logits_NL: Float64Array
    status_K: UInt8Array  # of the keys of `lookup_keys`


def predict_wide(view: "View", features: Features) -> WidePrediction:
    """Score samples by one version's net and wide part."""
    schema, wide = view.schema, view.wide
    assert wide is not None
    x_NX, bins_ND = view.wide_steps.numbers(features.dense_NF, wide.number_statistics_3D)
    features_K, ids_K = lookup_keys(schema, features)
    num_ids = len(ids_K)
    bin_features_B, bins_B = bin_keys(schema, bins_ND)
    keys = wide_rows(view, np.concatenate([features_K, bin_features_B]), np.concatenate([ids_K, bins_B]))
    found = keys.found
    net_NL = view.model.logits(view.parameters, assemble(schema, features, found.rows_KD[:num_ids]))
    slots, crosses = view.wide_steps.slots(schema, features, wide, keys.features_K, keys.ids_K, found.states_KW)
    logits_NL = view.wide_steps.score(
        wide,
        slots,
        WideRows(found.rows_KD, found.states_KW, found.counts_K),
        crosses,
        cross_rows(view, crosses.ids_C),
        x_NX,
        net_NL,
    )
    for number, link in enumerate(schema.label_links):
        if link != "logit":  # a value is the net's alone
            logits_NL[:, number] = net_NL[:, number]
    return WidePrediction(logits_NL, found.status_K[:num_ids])


def wide_rows(view: "View", features_K: UInt16Array, ids_K: Int64Array) -> WideKeys:
    """Return the rows that the model sees, with what the wide part knows of them, whatever tables they live in."""
    if view.model_table is not None:
        return view.model_table.wide_rows(features_K, ids_K)
    places_K = view.table_names.places(features_K)
    used = [view.tables[view.table_names.names[place]] for place in np.unique(places_K).tolist() or [0]]
    num_keys, (wide_width, *_) = len(ids_K), {table.spec.wide_width for table in used}
    row_features_K, row_ids_K = np.empty(num_keys, np.uint16), np.empty(num_keys, np.int64)
    rows_KD, status_K = np.zeros((num_keys, view.dim), np.float32), np.empty(num_keys, np.uint8)
    states_KW, counts_K = np.empty((num_keys, wide_width), np.float32), np.empty(num_keys, np.int64)
    for table in used:
        at_M = np.flatnonzero(view.table_names.holds(table.name, features_K))
        row_features_K[at_M], row_ids_K[at_M], found = table.wide_rows(features_K[at_M], ids_K[at_M])
        rows_KD[at_M, : table.dim], status_K[at_M] = found.rows_KD, found.status_K
        states_KW[at_M], counts_K[at_M] = found.states_KW, found.counts_K
    return WideKeys(row_features_K, row_ids_K, FoundStates(rows_KD, status_K, states_KW, counts_K))


def cross_rows(view: "View", ids_C: Int64Array) -> Float32Array:
    """Return weight and information of each cross for label 0, then 1, ..., (C, 2 L); zeros without a row."""
    table = view.table_of(CROSSES)
    if not table.spec.wide_width:
        values_C2L, status_C = table.search(CROSSES_1, ids_C)
        values_C2L[status_C != KNOWN] = 0
        return values_C2L
    columns_CW = table.search.with_states(CROSSES_1, ids_C).states_KW
    firsts = np.arange(0, columns_CW.shape[1] - 1, COLUMNS_OF_A_LABEL)
    return columns_CW[:, np.stack([firsts + WEIGHT, firsts + INFORMATION], axis=1).reshape(-1)]
