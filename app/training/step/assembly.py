"""Assembles a model's inputs from looked-up rows, differentiably. Equals springtide_client.model.inputs.assemble.

The table pools lists of multi_value features where their rows lie; every other row is returned as it is.
"""

# N samples, C categorical, P multi_value, S sequence features, T longest sequence, D dimension, K keys, M elements
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from springtide.embeddings.lookup.handle import LookupSlice
from springtide_client.features import Features
from springtide_client.model.inputs import ModelInputs
from springtide_client.schema import Schema


def lookup_slices(schema: Schema, features: Features) -> list[LookupSlice]:
    """Return the slices of `lookup_keys`: categorical rows (N * C), a pooled vector per sample and list, list rows."""
    slices = [LookupSlice(0, features.categorical_NC.size)]
    for name, ragged in zip(schema.lists, features.lists, strict=True):
        start = slices[-1].stop
        stop = start + len(ragged.ids_M)
        is_pooled = name in schema.multi_value
        slices.append(
            LookupSlice(start, stop, ragged.offsets, schema.pooling_of(name)) if is_pooled else LookupSlice(start, stop)
        )
    return slices


def input_columns(schema: Schema, features: Features) -> dict[str, npt.NDArray[Any]]:
    """Return the other inputs: dense values, offsets of pooled lists, lengths of sequences and places of their rows."""
    lengths_NS, longest = _sequence_lengths(schema, features)
    columns: dict[str, npt.NDArray[Any]] = {"dense": features.dense_NF, "lengths": lengths_NS}
    num_pooled = len(schema.multi_value)
    # slice 0 has the categorical rows
    columns |= {f"offsets.{number}": ragged.offsets for number, ragged in enumerate(features.lists[:num_pooled], 1)}
    for s, ragged in enumerate(features.lists[num_pooled:]):
        starts_N = np.arange(len(ragged.offsets) - 1) * longest - ragged.offsets[:-1]
        columns[f"places.{s}"] = np.repeat(starts_N, np.diff(ragged.offsets)) + np.arange(len(ragged.ids_M))
    return columns


def assemble_tensors(
    schema: Schema, features: Features, tensors: Sequence[Tensor], columns: Mapping[str, Tensor] | None = None
) -> ModelInputs:
    """Return the inputs of a batch from one tensor for each slice; gradients flow back to every row.

    `columns`: those of `input_columns` as tensors on the rows' device; None on the host.
    """
    if columns is None:
        columns = {name: torch.from_numpy(column) for name, column in input_columns(schema, features).items()}
    num_samples, num_categorical = features.categorical_NC.shape
    categorical_RD, num_pooled = tensors[0], len(schema.multi_value)
    pooled, sequences = list(tensors[1 : 1 + num_pooled]), tensors[1 + num_pooled :]
    dim, longest = categorical_RD.shape[1], _sequence_lengths(schema, features)[1]
    padded = [
        rows_MD.new_zeros(num_samples * longest, dim)
        .index_copy(0, columns[f"places.{s}"], rows_MD)
        .view(num_samples, longest, dim)
        for s, rows_MD in enumerate(sequences)
    ]
    return ModelInputs(
        categorical=categorical_RD.view(num_samples, num_categorical, dim),
        pooled=torch.stack(pooled, dim=1) if pooled else categorical_RD.new_zeros(num_samples, 0, dim),
        sequence=torch.stack(padded, dim=1) if padded else categorical_RD.new_zeros(num_samples, 0, longest, dim),
        sequence_length=columns["lengths"],
        dense=columns["dense"],
    )


def repeat_per_key(features: Features, values_N: npt.NDArray[Any], num_bins: int = 0) -> npt.NDArray[Any]:
    """Return, for each key of `lookup_keys`, the value of its sample; then for each of `num_bins` bins of a sample."""
    parts = [np.repeat(values_N, features.categorical_NC.shape[1])]
    parts += [np.repeat(values_N, np.diff(ragged.offsets)) for ragged in features.lists]
    parts += [np.repeat(values_N, num_bins)] if num_bins else []
    return np.concatenate(parts)


def _sequence_lengths(schema: Schema, features: Features) -> tuple[npt.NDArray[np.int64], int]:
    """Return the lengths of each sample's sequences, and the length that they are padded to."""
    sequences = features.lists[len(schema.multi_value) :]
    lengths_NS = np.zeros((len(features), len(sequences)), np.int64)
    for s, ragged in enumerate(sequences):
        lengths_NS[:, s] = np.diff(ragged.offsets)
    return lengths_NS, max(1, int(lengths_NS.max(initial=0)))
