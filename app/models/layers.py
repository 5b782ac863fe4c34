"""Layers of the nets: normalized dense features, perceptrons, vectors of one width; checks of options that say sizes.

A check returns the option, or raises a ValueError that says what it must be.
"""

# N samples, E fields, D dimension, d narrower dimension, F dense features, X normalized dense features
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from springtide.app.models.interface import ModelSpec
from springtide.kernels.cpu.net.normalize import observe_numbers

INITIAL_SCALE = 0.05  # as that of a new row
MEMORY = 1e6  # values; older ones fade, and float32 can still count
MAX_DEVIATIONS = 5.0  # standard deviations
VARIANCE_FLOOR = 1e-4  # a constant feature has no variance: else its rounding errors would become a signal


class DenseFeatureNormalizer(nn.Module):
    """Signed log1p, then running standardization; a missing value is 0 with an indicator.

    From raw values (N, F), NaN where missing, to (N, 2F): the standardized values, then the missing indicators.

    `observe` updates the statistics (pairwise update of Chan, Golub and LeVeque 1979); `forward` only reads them. A
    feature without any value so far is 0, as in the wide part.
    """

    mean_F: Tensor
    variance_F: Tensor
    count_F: Tensor

    def __init__(self, num_dense: int) -> None:
        super().__init__()
        self.num_outputs = 2 * num_dense
        self.register_buffer("mean_F", torch.zeros(num_dense))
        self.register_buffer("variance_F", torch.ones(num_dense))
        self.register_buffer("count_F", torch.zeros(num_dense))

    def observe(self, dense_NF: Tensor) -> None:
        """Count a batch."""
        if dense_NF.numel() == 0:
            return
        if dense_NF.device.type == "cpu" and dense_NF.dtype == torch.float32:
            statistics = self.mean_F.numpy(), self.variance_F.numpy(), self.count_F.numpy()
            observe_numbers(dense_NF.numpy(), *statistics, MEMORY)
        else:
            self._observe_on_device(dense_NF)

    @torch.no_grad()
    def _observe_on_device(self, dense_NF: Tensor) -> None:
        known_NF = ~torch.isnan(dense_NF)
        log_NF = torch.where(known_NF, _signed_log(dense_NF), 0.0)
        new_F = known_NF.sum(0).float()
        mean_F = log_NF.sum(0) / new_F.clamp(min=1)
        variance_F = torch.where(known_NF, log_NF - mean_F, 0.0).square().sum(0) / new_F.clamp(min=1)
        total_F = (self.count_F + new_F).clamp(min=1)
        share_F = new_F / total_F  # 0 where the batch has no value: nothing changes then
        shift_F = mean_F - self.mean_F
        spread_F = (1 - share_F) * self.variance_F * (self.count_F > 0) + share_F * (
            variance_F + shift_F.square() * (1 - share_F)
        )
        self.variance_F.copy_(torch.where(new_F > 0, spread_F, self.variance_F))
        self.mean_F.add_(share_F * shift_F)
        self.count_F.copy_((self.count_F + new_F).clamp(max=MEMORY))

    def forward(self, dense_NF: Tensor) -> Tensor:
        missing_NF = torch.isnan(dense_NF)
        scale_F = torch.rsqrt(self.variance_F + VARIANCE_FLOOR)
        standard_NF = ((_signed_log(dense_NF) - self.mean_F) * scale_F).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        standard_NF = torch.where(missing_NF | (self.count_F == 0), 0.0, standard_NF)
        return torch.cat([standard_NF, missing_NF.float()], dim=1)


def _signed_log(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.log1p(x.abs())


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


LARGEST_SIZE = 65536


def check_size(name: str, size: object, *, least: int = 1) -> int:
    """Return a whole number from `least` to 65536."""
    if type(size) is not int or not least <= size <= LARGEST_SIZE:
        raise ValueError(f"{name} must be a whole number from {least} to {LARGEST_SIZE}, not {size!r}")
    return size


def check_choice(name: str, choice: object, choices: Sequence[str]) -> str:
    """Return one of the choices."""
    if choice not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {choice!r}")
    return str(choice)


def check_names(name: str, names: object) -> list[str]:
    """Return a list of names."""
    if not isinstance(names, (list, tuple)) or not all(isinstance(one, str) for one in names):
        raise ValueError(f'{name} must be a list of names such as ["user_id"], not {names!r}')
    return list(names)


def perceptron(sizes: list[int], *, last_is_linear: bool) -> nn.Sequential:
    """Return linear layers of these sizes, each but the last followed by ReLU, the last one unless `last_is_linear`."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    return nn.Sequential(*(layers[:-1] if last_is_linear else layers))


class ZeroLinear(nn.Module):
    """A linear map without bias that starts at zero. The number of inputs may be 0."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_out, num_in))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def check_layer_sizes(name: str, sizes: object) -> list[int]:
    """Return the sizes of hidden layers from a model's options; ValueError if they are not sizes."""
    good = isinstance(sizes, (list, tuple)) and all(type(size) is int and 1 <= size <= 65536 for size in sizes)
    if not good:
        raise ValueError(f"{name} must be a list of layer sizes such as [128, 64], not {sizes!r}")
    return list(sizes)  # type: ignore[call-overload, no-any-return]
