"""Prepares batches for the table: their keys, and for a device all their columns, sent there in one copy."""

# N samples, K keys
# N samples, C categorical, P multi_value, S sequence features, T longest sequence, D dimension, K keys, M elements
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from springtide.app.training.device import PinnedBuffers, StagedColumns, TransferStream
from springtide.app.training.step.sample_weights import SampleWeights
from springtide.embeddings.lookup.handle import LookupSlice
from springtide.kernels.cpu.batch_keys import batch_keys
from springtide.kernels.cpu.wide.prepare import list_offsets, running_numbers
from springtide.kernels.ops import Ops
from springtide.kernels.types import Array
from springtide.stream.columns import Batch
from springtide.stream.negatives import NegativeSampling
from springtide_client.features import Features
from springtide_client.model.inputs import ModelInputs, list_scales
from springtide_client.schema import Schema
from springtide_client.wide.fields import bin_ids, signed_logs
from springtide_client.wide.slots import with_bias

Columns = dict[str, npt.NDArray[Any]]
_NO_IDS = np.empty(0, np.int64)
KEY_COLUMNS = ("features_K", "ids_K", "event_ms_K", "scores_K")


@dataclass(frozen=True)
class WideNumbers:
    """A batch's numbers, each standardized by the statistics before its sample."""

    x_NX: npt.NDArray[np.float64]
    before_3D: npt.NDArray[np.float64]
    after_3D: npt.NDArray[np.float64]


@dataclass(frozen=True)
class BatchKeys:
    """A batch's keys: arrays where the table is. Prefetch and lookup must get the very same arrays."""

    batch: Batch
    features_K: Array
    ids_K: Array
    event_ms_K: Array
    scores_K: Array | None
    slices: list[LookupSlice]  # which keys become which input of the model; the last one has the bins, if there are any
    offsets_PN1: npt.NDArray[np.int64]  # of the lists
    prefetch: Any = None  # what the table's `prefetch` gave
    staged: StagedColumns | None = None  # all columns of the batch, on their way to the device, until its `release`
    numbers: WideNumbers | None = None  # of the wide part
    counted_K: npt.NDArray[np.bool_] | None = None  # on the host: the keys that count as seen; None: all
    make_columns: Callable[[Batch], Columns] | None = None

    @cached_property
    def columns(self) -> Columns:
        """The other inputs of autograd, on the host: see `input_columns`; labels, weights, items."""
        assert self.make_columns is not None
        return self.make_columns(self.batch)

    def fit(self, batch: Batch, statistics_3D: npt.NDArray[np.float64] | None) -> bool:
        """Return True if they are those of this batch, its numbers standardized by what is known before it.

        Without samples, which only one of many ranks learns, any batch is the same.
        """
        is_same = self.batch is batch or not (len(self.batch) or len(batch))
        return is_same and (self.numbers is None or np.array_equal(self.numbers.before_3D, statistics_3D))  # type: ignore[arg-type]

    def tensors(self) -> dict[str, Tensor]:
        """Return the columns as tensors where the net is."""
        if self.staged is not None:
            return self.staged.tensors()
        return dict(zip(self.columns, map(torch.from_numpy, self.columns.values()), strict=True))


def _int64(array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(array, np.int64)


def wide_numbers(dense_NF: npt.NDArray[np.float32], statistics_3D: npt.NDArray[np.float64]) -> WideNumbers:
    """Return a batch's numbers, from statistics before it."""
    if not dense_NF.shape[1]:
        return WideNumbers(np.empty((len(dense_NF), 0)), statistics_3D, statistics_3D)
    after_3D = statistics_3D.copy()
    return WideNumbers(running_numbers(signed_logs(dense_NF), after_3D), statistics_3D.copy(), after_3D)


class KeyPreparer:
    """Builds the keys of a batch, and starts the copy of its columns if training runs on a device."""

    def __init__(
        self,
        schema: Schema,
        ops: Ops,
        transfer: TransferStream | None,
        score_field: str | None = None,
        *,
        wide: bool = False,
        item_column: int | None = None,
        negatives: NegativeSampling | None = None,
    ) -> None:
        """`ops` are the table's; `score_field` is the dense field with a sample's score for custom eviction.

        `wide`: bins of dense features have keys too. `item_column`: the categorical feature whose ids the step needs.
        """
        self._negatives = negatives
        self._num_bins, self._item_column = len(schema.dense) + len(schema.bias) if wide else 0, item_column
        self._wide, self._schema, self._ops = wide, schema, ops
        self._buffers = None if transfer is None else PinnedBuffers(transfer)
        self._keys_on_device = transfer is not None and ops.device != "cpu"
        self._numbers_F = np.array([*schema.feature_numbers, *schema.dense_numbers, *schema.bias_numbers], np.uint16)
        self._score_column = None if score_field is None else schema.dense.index(score_field)

    def num_keys(self, batch: Batch) -> int:
        """Return how many keys a batch has, every occurrence, those of bins included."""
        features = batch.features
        num_listed = sum(len(ragged.ids_M) for ragged in features.lists)
        return int(features.categorical_NC.size) + num_listed + len(batch) * self._num_bins

    def prepare(self, batch: Batch, statistics_3D: npt.NDArray[np.float64] | None = None) -> BatchKeys:
        """Return the keys on the host, with the columns on their way.

        `statistics_3D`: of the numbers before the batch, for the wide part.
        """
        schema, features, numbers = self._schema, batch.features, None
        slices, offsets_PN1 = lookup_slices(schema, features), list_offsets(features)
        bins_ND = np.empty((len(batch), 0), np.int64)
        if self._wide:
            assert statistics_3D is not None
            numbers = wide_numbers(features.dense_NF, statistics_3D)
            if self._num_bins:
                bins_ND = _int64(with_bias(schema, bin_ids(numbers.x_NX), features.bias_NB))
            slices.append(LookupSlice(slices[-1].stop, slices[-1].stop + bins_ND.size))
        lists = [ragged.ids_M for ragged in features.lists]
        elements_M = lists[0] if len(lists) == 1 else np.concatenate([_NO_IDS, *lists])
        ids_NC, elements_M, event_ms_N = map(_int64, (features.categorical_NC, elements_M, batch.event_ms_N))
        features_K, ids_K, event_ms_K = batch_keys(
            self._numbers_F, ids_NC, elements_M, offsets_PN1, bins_ND, event_ms_N
        )
        scores_K = None
        if self._score_column is not None:
            # a missing score counts as 0
            scores_N = np.nan_to_num(features.dense_NF[:, self._score_column], nan=0)
            scores_K = repeat_per_key(features, scores_N, self._num_bins)
        counted_K, is_counted_N = None, batch.is_counted_N
        if is_counted_N is not None:
            counted_K = repeat_per_key(features, is_counted_N, self._num_bins)
        staged = None
        if self._buffers is not None:
            own = zip(KEY_COLUMNS, (features_K, ids_K, event_ms_K, scores_K), strict=True)
            keys = {name: column for name, column in own if column is not None} if self._keys_on_device else {}
            staged = self._buffers.stage(self._columns(batch) | keys)
        return BatchKeys(
            batch,
            features_K,
            ids_K,
            event_ms_K,
            scores_K,
            slices,
            offsets_PN1,
            staged=staged,
            numbers=numbers,
            counted_K=counted_K,
            make_columns=self._columns,
        )

    def _columns(self, batch: Batch) -> Columns:
        columns = input_columns(self._schema, batch.features) | {"labels": batch.labels_NL, "weights": batch.weights_N}
        if (weights := SampleWeights.of(batch, self._negatives)) is not None:
            columns |= weights.columns()
        if batch.shares_NL is not None:
            columns["shares"] = batch.shares_NL
        if self._item_column is not None:
            columns["item_ids"] = np.ascontiguousarray(batch.features.categorical_NC[:, self._item_column])
        return columns

    def at_table(self, keys: BatchKeys) -> BatchKeys:
        """Return keys and offsets of bags as arrays where the table is, without a copy: the staged ones, if it is on
        the device.
        """
        if not self._keys_on_device or keys.staged is None or not isinstance(keys.ids_K, np.ndarray):
            return keys
        columns, array_of = keys.staged.tensors(), self._ops.array_of
        slices = [
            part if part.offsets_B1 is None else part._replace(offsets_B1=array_of(columns[f"offsets.{number}"]))
            for number, part in enumerate(keys.slices)
        ]
        slices = [
            part if part.scales_K is None else part._replace(scales_K=array_of(columns[f"scales.{number}"]))
            for number, part in enumerate(slices)
        ]
        own = {name: array_of(columns[name]) for name in KEY_COLUMNS if name in columns}
        return replace(keys, slices=slices, **own)


def lookup_slices(schema: Schema, features: Features) -> list[LookupSlice]:
    """Return the slices of `lookup_keys`: categorical rows (N * C), a pooled vector per sample and list, list rows."""
    slices = [LookupSlice(0, features.categorical_NC.size)]
    for name, ragged in zip(schema.lists, features.lists, strict=True):
        start = slices[-1].stop
        stop = start + len(ragged.ids_M)
        if name not in schema.multi_value:
            slices.append(LookupSlice(start, stop))
        elif ragged.weights_M is None:
            slices.append(LookupSlice(start, stop, ragged.offsets, schema.pooling_of(name)))
        else:
            scales_M = list_scales(ragged, schema.pooling_of(name))
            slices.append(LookupSlice(start, stop, ragged.offsets, "sum", scales_M))
    return slices


def input_columns(schema: Schema, features: Features) -> Columns:
    """Return the other inputs: dense values; offsets, and factors if there are any, of pooled lists; lengths of
    sequences and places of their rows.
    """
    num_pooled = len(schema.multi_value)
    pooled, sequences = features.lists[:num_pooled], features.lists[num_pooled:]
    lengths_NS = np.zeros((len(features), len(sequences)), np.int64)
    columns: Columns = {"dense": features.dense_NF, "lengths": lengths_NS}
    for number, ragged in enumerate(pooled, 1):  # slice 0 has the categorical rows
        columns[f"offsets.{number}"] = ragged.offsets
        if ragged.weights_M is not None:
            scales_M = list_scales(ragged, schema.pooling_of(schema.multi_value[number - 1]))
            assert scales_M is not None
            columns[f"scales.{number}"] = scales_M
    for s, ragged in enumerate(sequences):
        lengths_NS[:, s] = np.diff(ragged.offsets)
    longest = longest_sequence(lengths_NS)
    for s, ragged in enumerate(sequences):
        starts_N = np.arange(len(features)) * longest - ragged.offsets[:-1]
        columns[f"places.{s}"] = np.repeat(starts_N, lengths_NS[:, s]) + np.arange(len(ragged.ids_M))
    return columns


def longest_sequence(lengths_NS: npt.NDArray[np.int64]) -> int:
    """Return the length that a batch's sequences are padded to."""
    return max(1, int(lengths_NS.max(initial=0)))


def assemble_tensors(
    keys: BatchKeys, schema: Schema, tensors: Sequence[Tensor], columns: Mapping[str, Tensor] | None = None
) -> ModelInputs:
    """Return the inputs of a batch from one tensor for each slice but that of bins; gradients flow back to every row.

    `columns`: what `keys.tensors()` has returned.
    """
    columns = keys.tensors() if columns is None else columns
    num_samples, num_categorical = keys.batch.features.categorical_NC.shape
    categorical_RD, num_pooled = tensors[0], len(schema.multi_value)
    pooled, sequences = tensors[1 : 1 + num_pooled], tensors[1 + num_pooled :]
    dim, longest = categorical_RD.shape[1], longest_sequence(keys.columns["lengths"])
    padded = [
        rows_MD.new_zeros(num_samples * longest, dim)
        .index_copy(0, columns[f"places.{s}"], rows_MD)
        .view(num_samples, longest, dim)
        for s, rows_MD in enumerate(sequences)
    ]
    return ModelInputs(
        categorical=categorical_RD.view(num_samples, num_categorical, dim),
        pooled=torch.stack(list(pooled), dim=1) if pooled else categorical_RD.new_zeros(num_samples, 0, dim),
        sequence=torch.stack(padded, dim=1) if padded else categorical_RD.new_zeros(num_samples, 0, longest, dim),
        sequence_length=columns["lengths"],
        dense=columns["dense"],
    )


def repeat_per_key(features: Features, values_N: npt.NDArray[Any], num_bins: int = 0) -> npt.NDArray[Any]:
    """Return, for each key of `lookup_keys`, the value of its sample; then for each of `num_bins` bins of a sample."""
    parts = [np.repeat(values_N, features.categorical_NC.shape[1])]
    for ragged in features.lists:
        parts.append(np.repeat(values_N, np.diff(ragged.offsets)))
    if num_bins:
        parts.append(np.repeat(values_N, num_bins))
    return np.concatenate(parts)
