"""Compiled numbers, slots, crosses and scores equal the reference bit by bit, for every kind of feature."""

from dataclasses import replace

import numpy as np
import pytest

from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide_client.model.inputs import lookup_keys
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields
from springtide_client.wide.layout import wide_width
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.score import NUMPY_STEPS, WideRows
from springtide_client.wide.slots import bin_keys
from tests.app.training.random_clicks import SCHEMA, make_batch

PLAIN = Schema(labels=("click", "order"), categorical=("user_id", "item_id"))
LISTS = Schema(labels=("click",), multi_value=("genres",), sequence=("last_items",), max_length={"last_items": 20})
WEIGHTED = replace(SCHEMA, weighted=("genres",))
DIM = 3


@pytest.mark.parametrize(
    "schema", [SCHEMA, PLAIN, LISTS, WEIGHTED], ids=["all kinds", "categorical", "lists", "weighted"]
)
@pytest.mark.parametrize("num_samples", [0, 1, 40])
def test_compiled_steps_equal_the_reference(schema: Schema, num_samples: int) -> None:
    random, compiled = np.random.default_rng(num_samples), compiled_steps()
    num_labels, num_dense = len(schema.labels), len(schema.dense)
    parameters = WideParameters.initial(WideFields.of(schema), num_dense, num_labels)
    parameters.pair_is_live_P[1::3] = 0
    for count in (0, 50):
        parameters.number_statistics_3D[:] = np.array([[3.1], [0.4], [count]])
        features = make_batch(num_samples, num_samples, schema).features
        found = compiled.numbers(features.dense_NF, parameters.number_statistics_3D)
        expected = NUMPY_STEPS.numbers(features.dense_NF, parameters.number_statistics_3D)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        features_K, ids_K = (
            np.concatenate(parts)
            for parts in zip(lookup_keys(schema, features), bin_keys(schema, found[1]), strict=True)
        )
        wide_KW = random.integers(0, 3, (len(ids_K), wide_width(num_labels))).astype(np.float32)
        arguments = schema, features, parameters, features_K, ids_K, wide_KW
        slots, crosses = NUMPY_STEPS.slots(*arguments)
        for ours, theirs in zip(compiled.slots(*arguments), (slots, crosses), strict=True):
            for name in theirs._fields:
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
        assert (slots.weights_S is None) == (not schema.weighted)
        vectors_KD = random.normal(size=(len(ids_K), DIM)).astype(np.float32)
        rows = WideRows(vectors_KD, wide_KW, random.integers(0, 9, len(ids_K)))
        cross_rows = random.random((len(crosses.ids_C), 2 * num_labels)).astype(np.float32)
        net_NL = random.normal(size=(num_samples, num_labels))
        scored = [
            steps.score(parameters, slots, rows, crosses, cross_rows, found[0], net_NL)
            for steps in (compiled, NUMPY_STEPS)
        ]
        np.testing.assert_array_equal(*scored)


def test_another_schema_is_noticed() -> None:
    compiled = compiled_steps()
    for schema in (PLAIN, SCHEMA, PLAIN):
        features = make_batch(3, 5, schema).features
        parameters = WideParameters.initial(WideFields.of(schema), len(schema.dense), len(schema.labels))
        keys = zip(lookup_keys(schema, features), bin_keys(schema, np.zeros(features.dense_NF.shape, int)), strict=True)
        features_K, ids_K = (np.concatenate(parts) for parts in keys)
        wide_KW = np.ones((len(ids_K), wide_width(len(schema.labels))), np.float32)
        arguments = schema, features, parameters, features_K, ids_K, wide_KW
        np.testing.assert_array_equal(compiled.slots(*arguments)[1].ids_C, NUMPY_STEPS.slots(*arguments)[1].ids_C)
