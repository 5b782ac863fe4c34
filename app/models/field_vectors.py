"""Vectors of one width: of fields whose rows are narrower, and of dense features."""

# N samples, E fields, D dimension, d narrower dimension, F dense features, X normalized dense features
import torch
from torch import Tensor, nn

from springtide.app.models.interface import ModelSpec

INITIAL_SCALE = 0.05  # as that of a new row


class FieldProjection(nn.Module):
    """Gives every field's vector the full width, for a net that multiplies vectors of different fields.

    Vectors of narrower rows come padded with zeros: they pass through a linear map, one for each width, which at first
    leaves them as they are (mixed dimension embeddings, Ginart et al. 2019). Without narrower rows nothing is done.
    """

    order_E: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        dims = [field.dim for field in spec.fields]
        self.widths = sorted(set(dims) - {spec.dim})
        every_width = (*self.widths, spec.dim)
        self.groups = [[place for place, dim in enumerate(dims) if dim == width] for width in every_width]
        grouped_E = torch.tensor([place for group in self.groups for place in group], dtype=torch.int64)
        self.register_buffer("order_E", torch.argsort(grouped_E), persistent=False)
        self.weights = nn.ParameterList(nn.Parameter(torch.eye(width, spec.dim)) for width in self.widths)

    def forward(self, fields_NED: Tensor) -> Tensor:
        """Return (N, E, D) from vectors (N, E, D) that are padded with zeros."""
        if not self.widths:
            return fields_NED
        parts = [
            fields_NED[:, places, :width] @ weight_dD.to(fields_NED.dtype)
            for places, width, weight_dD in zip(self.groups, self.widths, self.weights, strict=False)
        ]
        if full := self.groups[-1]:
            parts.append(fields_NED[:, full])
        return torch.cat(parts, dim=1).index_select(1, self.order_E)


class DenseVectors(nn.Module):
    """A vector for each dense feature: its value times a learned one; of a missing value another learned one."""

    def __init__(self, num_dense: int, dim: int) -> None:
        super().__init__()
        self.num_dense = num_dense
        self.value_FD = nn.Parameter(torch.randn(num_dense, dim) * INITIAL_SCALE)
        self.missing_FD = nn.Parameter(torch.randn(num_dense, dim) * INITIAL_SCALE)

    def forward(self, dense_NX: Tensor) -> Tensor:
        """Return (N, F, D) from normalized values and missing indicators (N, 2F)."""
        values_NF1 = dense_NX[:, : self.num_dense, None]
        missing_NF1 = dense_NX[:, self.num_dense :, None]
        return values_NF1 * self.value_FD + missing_NF1 * self.missing_FD
