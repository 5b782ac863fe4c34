"""AutoInt (Song et al. 2019): layers of multi-head self-attention among the vectors of fields, each with a residual."""

# N samples, E fields, D dimension, X normalized dense features, V vectors (fields and dense features), H heads,
# A dimension of a head
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import DenseVectors, FieldProjection, check_layer_sizes, check_size, perceptron


class InteractingLayer(nn.Module):
    """relu(attention + linear): as in the paper, dot products are not scaled and heads are not mixed."""

    def __init__(self, num_in: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.query, self.key, self.value, self.residual = (
            nn.Linear(num_in, num_heads * head_dim, bias=False) for _ in range(4)
        )

    def forward(self, x_NVD: Tensor) -> Tensor:
        def heads(linear: nn.Linear) -> Tensor:
            y_NHVA: Tensor = linear(x_NVD).unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)
            return y_NHVA

        # plain products: for so few vectors they are as fast as scaled_dot_product_attention on a CPU
        attention_NHVV = torch.softmax(heads(self.query) @ heads(self.key).transpose(2, 3), dim=3)
        mixed_NVD = (attention_NHVV @ heads(self.value)).transpose(1, 2).flatten(2)
        return torch.relu(mixed_NVD + self.residual(x_NVD))


class AutoInt(CalibratedModel):
    """`layers` of attention with `heads` of `head_dim` numbers. With `hidden` a perceptron stands beside (AutoInt+).

    Dense features have a vector each, as fields do.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        layers: int = 2,
        heads: int = 2,
        head_dim: int = 8,
        hidden: Sequence[int] = (128,),
    ) -> None:
        super().__init__(spec)
        num_layers, num_heads = check_size("layers", layers), check_size("heads", heads)
        head_dim, sizes = check_size("head_dim", head_dim), check_layer_sizes("hidden", hidden)
        num_vectors, width = spec.num_fields + spec.num_dense, num_heads * head_dim
        self.project = FieldProjection(spec)
        self.dense_vectors = DenseVectors(spec.num_dense, spec.dim)
        self.attention = nn.Sequential(
            *(InteractingLayer(spec.dim if n == 0 else width, num_heads, head_dim) for n in range(num_layers))
        )
        num_inputs = spec.num_fields * spec.dim + self.normalizer.num_outputs
        self.deep = perceptron([num_inputs, *sizes], last_is_linear=False) if sizes else None
        self.last = nn.Linear(num_vectors * width + (sizes[-1] if sizes else 0), spec.num_labels)

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return self.last.parameters()

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        vectors_NVD = torch.cat([self.project(fields_NED), self.dense_vectors(dense_NX)], dim=1)
        parts = [self.attention(vectors_NVD).flatten(1)]
        if self.deep is not None:
            parts.append(self.deep(torch.cat([fields_NED.flatten(1), dense_NX], dim=1)).to(parts[0].dtype))
        deep_NL: Tensor = self.last(torch.cat(parts, dim=1)).float()
        return deep_NL
