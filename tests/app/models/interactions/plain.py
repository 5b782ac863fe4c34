"""Compares a net with a plain reference, which computes one sample at a time in loops: scores and all gradients."""

# N samples, E fields, D dimension, X normalized dense features, L labels
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from tests.support.model_specs import spec_of_sizes

NUM_SAMPLES = 3
Parameters = Mapping[str, Tensor]  # of the net, by name


class Sample:
    """One sample as a reference sees it."""

    def __init__(self, spec: ModelSpec, parameters: Parameters, fields_ED: Tensor, dense_X: Tensor) -> None:
        self.spec, self.parameters, self.dense = spec, parameters, dense_X
        self.rows = list(fields_ED)

    @property
    def inputs(self) -> Tensor:
        """All rows and the dense features, one after the other."""
        return torch.cat([*self.rows, self.dense])

    @property
    def vectors(self) -> list[Tensor]:
        """The rows, of the full width: narrower ones through the map of their width."""
        dims = [field.dim for field in self.spec.fields]
        narrow = sorted(set(dims) - {self.spec.dim})
        return [
            row if dim == self.spec.dim else row[:dim] @ self.parameters[f"project.weights.{narrow.index(dim)}"]
            for row, dim in zip(self.rows, dims, strict=True)
        ]

    @property
    def dense_vectors(self) -> list[Tensor]:
        num_dense, p = self.spec.num_dense, self.parameters
        return [
            self.dense[f] * p["dense_vectors.value_FD"][f]
            + self.dense[num_dense + f] * p["dense_vectors.missing_FD"][f]
            for f in range(num_dense)
        ]

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Apply the linear map of this name."""
        y = self.parameters[f"{name}.weight"] @ x
        return y + self.parameters[f"{name}.bias"] if f"{name}.bias" in self.parameters else y

    def perceptron(self, name: str, x: Tensor, *, last_is_linear: bool) -> Tensor:
        """Apply linear maps `name.0`, `name.2`, ... with ReLU after each, the last one unless `last_is_linear`."""
        layers = [n for n in range(0, 100, 2) if f"{name}.{n}.weight" in self.parameters]
        for n in layers:
            x = self.linear(f"{name}.{n}", x)
            if n != layers[-1] or not last_is_linear:
                x = x.clamp(min=0)
        return x

    def first_order(self) -> list[Tensor]:
        """Return the sum of each label's first-order weights."""
        scale = (4 / self.spec.num_fields) ** 0.5
        return [scale * sum(row[label % self.spec.dim] for row in self.rows) for label in range(self.spec.num_labels)]

    def linear_dense(self) -> Tensor:
        return self.linear("linear", self.dense)

    def pairs(self) -> list[tuple[int, int]]:
        return list(itertools.combinations(range(self.spec.num_fields), 2))


Reference = Callable[[Sample, bool], Sequence[Tensor] | Tensor]  # given a sample and if the net is an offset: (L,)


def check_against(
    reference: Reference,
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    sizes: Sequence[int] = (2, 1, 0, 2, 2),
    dim: int = 6,
    dims: Mapping[int, int] | None = None,
) -> None:
    """Compare scores and gradients, of the net and of the net beside a wide part."""
    spec = spec_of_sizes(*sizes, dim=dim, dims=dims)
    for is_offset in (False, True):
        model = build_model(ModelConfig(name=name, options=dict(options or {})), spec, seed=1)
        assert isinstance(model, CalibratedModel)
        draw = torch.Generator().manual_seed(2)
        fields_NED = torch.randn(NUM_SAMPLES, spec.num_fields, dim, generator=draw)
        for e, field in enumerate(spec.fields):
            fields_NED[:, e, field.dim :] = 0
        dense_NX = torch.randn(NUM_SAMPLES, 2 * spec.num_dense, generator=draw)
        if is_offset:
            model.use_wide_part()
            assert (model.deep_scores(fields_NED, dense_NX) == 0).all()  # all is left to the wide part at first
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.3)
        named = dict(model.named_parameters())
        if not is_offset:
            named = {name: value for name, value in named.items() if not name.startswith("calibration.")}
        fields_NED.requires_grad_()
        dense_NX.requires_grad_()
        leaves = [fields_NED, dense_NX, *named.values()]
        scores = model.deep_scores if is_offset else model.scores
        scores_NL = scores(fields_NED, dense_NX).expand(-1, spec.num_labels)
        plain_NL = torch.stack(
            [
                torch.stack(list(reference(Sample(spec, named, fields_NED[n], dense_NX[n]), is_offset)))
                for n in range(NUM_SAMPLES)
            ]
        )
        torch.testing.assert_close(scores_NL, plain_NL, rtol=1e-4, atol=1e-4)
        weights_NL = torch.randn(scores_NL.shape, generator=draw)
        ours, plain = (
            torch.autograd.grad((result * weights_NL).sum(), leaves, allow_unused=True, materialize_grads=True)
            for result in (scores_NL, plain_NL)
        )
        for what, our, expected in zip(["rows", "dense", *named], ours, plain, strict=True):
            torch.testing.assert_close(our, expected, rtol=1e-3, atol=1e-4)
            # beside a wide part a net may do without rows or numbers, but no parameter is left over
            assert what in ("rows", "dense") or expected.any(), f"{what} has no gradient"
