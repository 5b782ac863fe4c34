"""From looked-up rows to a model's inputs, differentiable: the torch twin of springtide_client.inputs.assemble."""

# N samples, C categorical, P multi_value, S sequence features, T longest sequence, D dimension, K keys, M elements
import numpy as np
import torch
from springtide_client.features import Features, Ragged
from springtide_client.inputs import ModelInputs
from springtide_client.keys import Int64Array
from springtide_client.schema import Schema
from torch import Tensor


def assemble_tensors(schema: Schema, features: Features, rows_KD: Tensor) -> ModelInputs:
    """The inputs of a batch from the rows of `lookup_keys`; gradients flow back to every row."""
    num_samples, num_categorical = features.categorical_NC.shape
    dim = rows_KD.shape[1]
    start = num_samples * num_categorical
    categorical_NCD = rows_KD[:start].view(num_samples, num_categorical, dim)
    num_pooled = len(schema.multi_value)
    pooled = []
    for name, ragged in zip(schema.multi_value, features.lists[:num_pooled], strict=True):
        end = start + len(ragged.ids_M)
        pooled.append(_pool(rows_KD[start:end], ragged.offsets, schema.pooling_of(name)))
        start = end
    sequences = features.lists[num_pooled:]
    lengths_NS = np.zeros((num_samples, len(sequences)), np.int64)
    for s, ragged in enumerate(sequences):
        lengths_NS[:, s] = np.diff(ragged.offsets)
    longest = max(1, int(lengths_NS.max(initial=0)))
    padded = []
    for ragged in sequences:
        end = start + len(ragged.ids_M)
        padded.append(_pad(rows_KD[start:end], ragged, longest))
        start = end
    return ModelInputs(
        categorical=categorical_NCD,
        pooled=torch.stack(pooled, dim=1) if pooled else rows_KD.new_zeros(num_samples, 0, dim),
        sequence=torch.stack(padded, dim=1) if padded else rows_KD.new_zeros(num_samples, 0, longest, dim),
        sequence_length=torch.from_numpy(lengths_NS),
        dense=torch.from_numpy(features.dense_NF),
    )


def event_times(features: Features, event_ms_N: Int64Array) -> Int64Array:
    """The event time of each key of `lookup_keys`: its sample's."""
    parts = [np.repeat(event_ms_N, features.categorical_NC.shape[1])]
    parts += [np.repeat(event_ms_N, np.diff(ragged.offsets)) for ragged in features.lists]
    return np.concatenate(parts)


def _pool(rows_MD: Tensor, offsets: Int64Array, pooling: str) -> Tensor:
    """The mean, sum or max of each list's rows (N, D); zeros for an empty one."""
    lengths_N = np.diff(offsets)
    samples_M = torch.from_numpy(np.repeat(np.arange(len(lengths_N)), lengths_N))
    if pooling == "max":
        return _maxima(rows_MD, samples_M, torch.from_numpy(lengths_N))
    sums_ND = rows_MD.new_zeros(len(lengths_N), rows_MD.shape[1]).index_add(0, samples_M, rows_MD)
    if pooling == "sum":
        return sums_ND
    return sums_ND / torch.from_numpy(np.maximum(lengths_N, 1).astype(np.float32))[:, None]


def _maxima(rows_MD: Tensor, samples_M: Tensor, lengths_N: Tensor) -> Tensor:
    """The largest of each list's rows, element by element; the gradient goes to the winner, the first on ties."""
    num_rows, dim = rows_MD.shape
    if num_rows == 0:
        return rows_MD.new_zeros(len(lengths_N), dim)
    with torch.no_grad():
        lists_MD = samples_M[:, None].expand(num_rows, dim)
        lowest = rows_MD.new_full((len(lengths_N), dim), float("-inf"))
        highest_MD = lowest.scatter_reduce(0, lists_MD, rows_MD, "amax").gather(0, lists_MD)
        wins_MD = torch.where(rows_MD < highest_MD, num_rows - 1, torch.arange(num_rows)[:, None])
        last = wins_MD.new_full((len(lengths_N), dim), num_rows - 1)
        winners_ND = last.scatter_reduce(0, lists_MD, wins_MD, "amin")
    return torch.where((lengths_N > 0)[:, None], rows_MD.gather(0, winners_ND), 0.0)


def _pad(rows_MD: Tensor, ragged: Ragged, longest: int) -> Tensor:
    """The lists of each sample side by side, (N, T, D), zeros behind them."""
    lengths_N = np.diff(ragged.offsets)
    num_samples, dim = len(lengths_N), rows_MD.shape[1]
    starts_M = np.repeat(np.arange(num_samples) * longest - ragged.offsets[:-1], lengths_N)
    places_M = torch.from_numpy(starts_M + np.arange(len(ragged.ids_M)))
    flat = rows_MD.new_zeros(num_samples * longest, dim).index_copy(0, places_M, rows_MD)
    return flat.view(num_samples, longest, dim)
