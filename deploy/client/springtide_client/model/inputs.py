"""Turn encoded features into a model's inputs: which rows to look up, and how they become dense arrays.

The reference, in plain numpy. The trainer's differentiable version is tested to equal it.
"""

# N samples, C categorical features, P multi_value features, S sequence features, L lists (P + S), T longest sequence,
# F dense features, D dimension, K keys (every id once per occurrence), M elements of all lists
from typing import Any, NamedTuple

import numpy as np

from springtide_client.array_types import Float32Array, Int64Array, UInt16Array
from springtide_client.features import Features, Ragged
from springtide_client.schema import Schema

MIN_SIZE = 1e-12  # of what a mean by weights divides by


class ModelInputs(NamedTuple):
    """The arguments of a model's forward, in order; arrays or tensors. A kind that is absent has an axis of size 0."""

    categorical: Any  # [N, C, D]
    pooled: Any  # [N, P, D], the mean, sum or max of each multi_value list by its weights, zeros for an empty one
    sequence: Any  # [N, S, T, D], padded with zeros on the right, T at least 1
    sequence_length: Any  # [N, S] int64
    dense: Any  # [N, F], raw; NaN where missing


def lookup_keys(schema: Schema, features: Features) -> tuple[UInt16Array, Int64Array]:
    """Return the keys whose rows the samples need: features_K, ids_K.

    The categorical ids come first, sample by sample (N * C), then the elements of each list of `schema.lists`.
    """
    num_samples = len(features)
    numbers, num_categorical = schema.feature_numbers, len(schema.categorical)
    counts = [len(ragged.ids_M) for ragged in features.lists]
    features_K = np.empty(num_samples * num_categorical + sum(counts), np.uint16)
    start = num_samples * num_categorical
    features_K[:start].reshape(num_samples, num_categorical)[:] = numbers[:num_categorical]
    for number, count in zip(numbers[num_categorical:], counts, strict=True):
        features_K[start : start + count] = number
        start += count
    parts = [features.categorical_NC.reshape(-1), *(ragged.ids_M for ragged in features.lists)]
    return features_K, np.concatenate(parts).astype(np.int64, copy=False)


def assemble(schema: Schema, features: Features, rows_KD: Float32Array) -> ModelInputs:
    """Build a model's inputs from the rows of `lookup_keys`, which must hold no NaN (see View.rows_for_model)."""
    num_samples, num_categorical = features.categorical_NC.shape
    dim = rows_KD.shape[1]
    start = num_samples * num_categorical
    categorical_NCD = rows_KD[:start].reshape(num_samples, num_categorical, dim)
    num_pooled, num_sequence = len(schema.multi_value), len(schema.sequence)
    pooled_NPD = np.zeros((num_samples, num_pooled, dim), np.float32)
    for p, (name, ragged) in enumerate(zip(schema.multi_value, features.lists[:num_pooled], strict=True)):
        end = start + len(ragged.ids_M)
        rows_MD, pooling = rows_KD[start:end], schema.pooling_of(name)
        if (scales_M := list_scales(ragged, pooling)) is not None:
            rows_MD, pooling = rows_MD * scales_M[:, None], "sum"
        pooled_NPD[:, p] = _pool(rows_MD, ragged.offsets, pooling)
        start = end
    sequences = features.lists[num_pooled:]
    lengths_NS = np.zeros((num_samples, num_sequence), np.int64)
    for s, ragged in enumerate(sequences):
        lengths_NS[:, s] = np.diff(ragged.offsets)
    longest = max(1, int(lengths_NS.max(initial=0)))
    sequence_NSTD = np.zeros((num_samples, num_sequence, longest, dim), np.float32)
    for s, ragged in enumerate(sequences):
        end = start + len(ragged.ids_M)
        samples_M = np.repeat(np.arange(num_samples), lengths_NS[:, s])
        positions_M = np.arange(len(ragged.ids_M)) - ragged.offsets[samples_M]
        sequence_NSTD[samples_M, s, positions_M] = rows_KD[start:end]
        start = end
    return ModelInputs(categorical_NCD, pooled_NPD, sequence_NSTD, lengths_NS, features.dense_NF)


def list_scales(ragged: Ragged, pooling: str) -> Float32Array | None:
    """Return by what the row of each element is multiplied before a list's rows are added, float32 (M).

    None of lists without weights. `pooling`: "sum", or "mean", which divides by the sum of the weights' sizes.
    """
    if ragged.weights_M is None or pooling == "sum":
        return ragged.weights_M
    lengths_N, sizes_M = np.diff(ragged.offsets), np.abs(ragged.weights_M.astype(np.float64))
    sums_N = np.bincount(np.repeat(np.arange(len(lengths_N)), lengths_N), sizes_M, len(lengths_N))
    scales_M: Float32Array = (ragged.weights_M / np.maximum(np.repeat(sums_N, lengths_N), MIN_SIZE)).astype(np.float32)
    return scales_M


def scaled_rows(schema: Schema, features: Features, rows_KD: Float32Array) -> Float32Array:
    """Return the rows of `lookup_keys` such that their plain mean or sum in a list is the one by its weights."""
    if not schema.weighted:
        return rows_KD
    rows_KD, start = rows_KD.copy(), features.categorical_NC.size
    for name, ragged in zip(schema.lists, features.lists, strict=True):
        end = start + len(ragged.ids_M)
        if ragged.weights_M is not None:
            scales_M, lengths_N = list_scales(ragged, schema.pooling_of(name)), np.diff(ragged.offsets)
            assert scales_M is not None
            if schema.pooling_of(name) == "mean":
                scales_M = scales_M * np.repeat(lengths_N, lengths_N).astype(np.float32)
            rows_KD[start:end] *= scales_M[:, None]
        start = end
    return rows_KD


def _pool(rows_MD: Float32Array, offsets: Int64Array, pooling: str) -> Float32Array:
    """Return the mean, sum or max of each list's rows, float32 (N, D); zeros for an empty list."""
    lengths_N = np.diff(offsets)
    pooled_ND = np.zeros((len(lengths_N), rows_MD.shape[1]), np.float32)
    filled_N = np.flatnonzero(lengths_N)
    if len(filled_N):
        # empty lists have no elements, so the starts of the other lists split the rows exactly
        reduce = np.maximum if pooling == "max" else np.add
        pooled_ND[filled_N] = reduce.reduceat(rows_MD, offsets[:-1][filled_N], axis=0)
        if pooling == "mean":
            pooled_ND[filled_N] /= lengths_N[filled_N].astype(np.float32)[:, None]
    return pooled_ND
