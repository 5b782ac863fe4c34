"""From a look-up to a model's inputs, differentiable: the twin of springtide_client.inputs.assemble over the table.

Lists of multi_value features are pooled where their rows lie; every other row is handed out as it is.
"""

# N samples, C categorical, P multi_value, S sequence features, T longest sequence, D dimension, K keys, M elements
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from springtide_client.features import Features, Ragged
from springtide_client.inputs import ModelInputs
from springtide_client.schema import Schema
from torch import Tensor

from embeddings.autograd import Part


def parts_of(schema: Schema, features: Features) -> list[Part]:
    """What the table makes of the keys of `lookup_keys`: rows (N * C), a vector a sample for each pooled list, rows."""
    parts = [Part(0, features.categorical_NC.size)]
    for name, ragged in zip(schema.lists, features.lists, strict=True):
        start = parts[-1].stop
        stop = start + len(ragged.ids_M)
        is_pooled = name in schema.multi_value
        parts.append(Part(start, stop, ragged.offsets, schema.pooling_of(name)) if is_pooled else Part(start, stop))
    return parts


def assemble_tensors(schema: Schema, features: Features, tensors: Sequence[Tensor]) -> ModelInputs:
    """The inputs of a batch from a tensor for each part; gradients flow back to every row."""
    num_samples, num_categorical = features.categorical_NC.shape
    categorical_RD, num_pooled = tensors[0], len(schema.multi_value)
    pooled, sequences = list(tensors[1 : 1 + num_pooled]), features.lists[num_pooled:]
    dim = categorical_RD.shape[1]
    lengths_NS = np.zeros((num_samples, len(sequences)), np.int64)
    for s, ragged in enumerate(sequences):
        lengths_NS[:, s] = np.diff(ragged.offsets)
    longest = max(1, int(lengths_NS.max(initial=0)))
    rows_of = zip(tensors[1 + num_pooled :], sequences, strict=True)
    padded = [_pad(rows_MD, ragged, longest) for rows_MD, ragged in rows_of]
    return ModelInputs(
        categorical=categorical_RD.view(num_samples, num_categorical, dim),
        pooled=torch.stack(pooled, dim=1) if pooled else categorical_RD.new_zeros(num_samples, 0, dim),
        sequence=torch.stack(padded, dim=1) if padded else categorical_RD.new_zeros(num_samples, 0, longest, dim),
        sequence_length=torch.from_numpy(lengths_NS),
        dense=torch.from_numpy(features.dense_NF),
    )


def of_samples(features: Features, values_N: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """For each key of `lookup_keys` what its sample has: its event time, its score."""
    parts = [np.repeat(values_N, features.categorical_NC.shape[1])]
    parts += [np.repeat(values_N, np.diff(ragged.offsets)) for ragged in features.lists]
    return np.concatenate(parts)


def _pad(rows_MD: Tensor, ragged: Ragged, longest: int) -> Tensor:
    """The lists of each sample side by side, (N, T, D), zeros behind them."""
    lengths_N = np.diff(ragged.offsets)
    num_samples, dim = len(lengths_N), rows_MD.shape[1]
    starts_M = np.repeat(np.arange(num_samples) * longest - ragged.offsets[:-1], lengths_N)
    places_M = torch.from_numpy(starts_M + np.arange(len(ragged.ids_M)))
    flat = rows_MD.new_zeros(num_samples * longest, dim).index_copy(0, places_M, rows_MD)
    return flat.view(num_samples, longest, dim)
