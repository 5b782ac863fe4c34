"""The logits of a version with a wide part: rows with its numbers, the net's logits, crosses, the score of all."""

# N samples, L labels, K keys of ids and then of bins, C crosses of all samples
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from springtide_client.array_types import Float32Array, UInt8Array
from springtide_client.features import Features
from springtide_client.model.inputs import ModelInputs, assemble, lookup_keys
from springtide_client.model.view_table import ModelRows
from springtide_client.schema import Schema
from springtide_client.wide.fields import Float64Array
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.score import WideRows, WideSteps
from springtide_client.wide.slots import bin_keys, with_bias


class WidePrediction(NamedTuple):
    """Predictions of the deep net and of the wide part for N samples."""

    logits_NL: Float64Array
    status_K: UInt8Array  # of the keys of `lookup_keys`


def predict_wide(
    features: Features,
    schema: Schema,
    wide: WideParameters,
    steps: WideSteps,
    rows: ModelRows,
    net: Callable[[ModelInputs], Float32Array],
) -> WidePrediction:
    """Score samples by one version's net and wide part. `net` returns the logits (N, L) of the net alone."""
    x_NX, bins_ND = steps.numbers(features.dense_NF, wide.number_statistics_3D)
    features_K, ids_K = lookup_keys(schema, features)
    num_ids = len(ids_K)
    bias_NB = features.bias_NB if schema.serves_sent_bias else None  # else samples that have some are served alike
    bin_features_B, bins_B = bin_keys(schema, with_bias(schema, bins_ND, bias_NB))
    keys = rows.wide_rows(np.concatenate([features_K, bin_features_B]), np.concatenate([ids_K, bins_B]))
    found = keys.found
    net_NL = net(assemble(schema, features, found.rows_KD[:num_ids]))
    slots, crosses = steps.slots(schema, features, wide, keys.features_K, keys.ids_K, found.states_KW)
    logits_NL = steps.score(
        wide,
        slots,
        WideRows(found.rows_KD, found.states_KW, found.counts_K),
        crosses,
        rows.cross_rows(crosses.ids_C),
        x_NX,
        net_NL,
    )
    for number, link in enumerate(schema.label_links):
        if link != "logit":  # a value is the net's alone
            logits_NL[:, number] = net_NL[:, number]
    return WidePrediction(logits_NL, found.status_K[:num_ids])
