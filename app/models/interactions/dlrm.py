"""DLRM (Naumov et al. 2019): dense features become a vector of a row's size, all pairs of vectors are multiplied.

Two additions make it learn faster from ids that were seen only a few times: the pairs and each row's first elements are
also added to the score directly (`wide`), and the top perceptron sees the rows themselves (`rows_on_top`). Without both
it is the net of the paper.
"""

# N samples, E fields, V vectors (fields, one of the dense features), I pairs, D dimension, X normalized features
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.interactions.dot_interaction import dot_interaction, pair_places
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import FieldProjection, check_layer_sizes, perceptron


class DLRM(CalibratedModel):
    """`bottom` and `top` are the hidden layers of the two perceptrons."""

    pairs_I: Tensor

    def __init__(
        self,
        spec: ModelSpec,
        *,
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (128,),
        wide: bool = True,
        rows_on_top: bool = True,
    ) -> None:
        super().__init__(spec)
        num_normalized, dim = self.normalizer.num_outputs, spec.dim
        bottom_sizes, top_sizes = check_layer_sizes("bottom", bottom), check_layer_sizes("top", top)
        self.adds_pairs, self.rows_on_top = wide, rows_on_top
        self.bottom: nn.Sequential | None = None
        if num_normalized:
            self.bottom = perceptron([num_normalized, *bottom_sizes, dim], last_is_linear=False)
        self.project = FieldProjection(spec)
        num_vectors = spec.num_fields + (1 if self.bottom is not None else 0)
        self.register_buffer("pairs_I", pair_places(num_vectors), persistent=False)
        num_vectors_on_top = num_vectors if rows_on_top else num_vectors - spec.num_fields
        num_top = len(self.pairs_I) + num_vectors_on_top * dim
        self.top = perceptron([num_top, *top_sizes, spec.num_labels], last_is_linear=True)

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return self.top[-1].parameters()

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        return self.top_and_pairs(fields_NED, dense_NX)[0]

    def scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        scores_NL, pairs_NI = self.top_and_pairs(fields_NED, dense_NX)
        if not self.adds_pairs:
            return scores_NL
        pairs_N1 = pairs_NI.float().sum(dim=1, keepdim=True)
        return scores_NL + self.first_order(fields_NED) + self.pair_scale * pairs_N1

    def top_and_pairs(self, fields_NED: Tensor, dense_NX: Tensor) -> tuple[Tensor, Tensor]:
        """Return the top perceptron's scores (N, L), and the product of each pair of vectors (N, I)."""
        parts = [fields_NED.flatten(1)] if self.rows_on_top else []
        vectors_NVD = projected_NED = self.project(fields_NED)
        if self.bottom is not None:
            vector_ND: Tensor = self.bottom(dense_NX)
            parts.append(vector_ND.to(fields_NED.dtype))
            vectors_NVD = torch.cat([parts[-1].unsqueeze(1), projected_NED], dim=1)
        pairs_NI = dot_interaction(vectors_NVD, self.pairs_I)
        scores_NL: Tensor = self.top(torch.cat([*parts, pairs_NI], dim=1)).float()
        return scores_NL, pairs_NI
