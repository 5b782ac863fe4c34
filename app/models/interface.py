"""The interface of a dense net: a torch module from rows and dense features to logits. Knows no table and no stream."""

# N samples, C categorical, P multi_value, S sequence features, T longest sequence, F dense, D dimension, L labels
from dataclasses import dataclass

import torch
from springtide_client.schema import Schema
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The sizes of a model's inputs and outputs."""

    num_categorical: int
    num_pooled: int
    num_sequence: int
    num_dense: int
    num_labels: int
    dim: int

    @staticmethod
    def of(schema: Schema, dim: int) -> "ModelSpec":
        """Return the sizes for a schema and a row dimension."""
        return ModelSpec(
            num_categorical=len(schema.categorical),
            num_pooled=len(schema.multi_value),
            num_sequence=len(schema.sequence),
            num_dense=len(schema.dense),
            num_labels=len(schema.labels),
            dim=dim,
        )

    @property
    def num_fields(self) -> int:
        """Vectors per sample, once its sequences are averaged."""
        return self.num_categorical + self.num_pooled + self.num_sequence


class DenseModel(nn.Module):
    """From a sample's rows and dense features to one logit per label.

    A subclass is built as `Subclass(spec, **options)` and defines `forward`. Buffers are for statistics; only the two
    `observe_*` methods write them, so that `forward` is a pure function that can be exported and served.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(
        self,
        categorical_NCD: Tensor,
        pooled_NPD: Tensor,
        sequence_NSTD: Tensor,
        length_NS: Tensor,
        dense_NF: Tensor,
    ) -> Tensor:
        """Return logits [N, L], float32. Sequences are padded with zeros at the end; dense is raw, missing is NaN."""
        raise NotImplementedError

    def observe_inputs(self, dense_NF: Tensor) -> None:
        """Called with a batch's dense features after it was scored, before `observe_labels`."""

    def observe_labels(self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        """Called with a batch's logits and labels (NaN: masked) after it was scored, before the optimizer's step."""


def join_fields(categorical_NCD: Tensor, pooled_NPD: Tensor, sequence_NSTD: Tensor, length_NS: Tensor) -> Tensor:
    """Return one vector per field, (N, C + P + S, D): of a sequence the mean of its rows, zeros if it is empty."""
    if sequence_NSTD.shape[1] == 0:
        if pooled_NPD.shape[1] == 0:
            return categorical_NCD
        return torch.cat([categorical_NCD, pooled_NPD], dim=1)
    means_NSD = sequence_NSTD.sum(dim=2) / length_NS.clamp(min=1).unsqueeze(-1)
    return torch.cat([categorical_NCD, pooled_NPD, means_NSD], dim=1)
