"""FinalMLP (Mao et al. 2023): two perceptrons, each behind a gate of its own, fused by a bilinear product."""

# N samples, E fields, D dimension, X normalized dense features, I inputs (E * D + X), G context (fields * D), H heads,
# A, B outputs of a head of the first and second stream, L labels
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from springtide.app.models.calibrated_model import CalibratedModel
from springtide.app.models.interface import ModelSpec
from springtide.app.models.layers import check_layer_sizes, check_names, check_size, perceptron


class FeatureGate(nn.Module):
    """Weighs each input by 2 * sigmoid(g): g from a perceptron over some fields, or learned if there are none.

    Every weight is 1 at first.
    """

    def __init__(self, spec: ModelSpec, places: Sequence[int], num_inputs: int, hidden: int) -> None:
        super().__init__()
        self.places = list(places)
        if self.places:
            last = nn.Linear(hidden, num_inputs)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.net = nn.Sequential(nn.Linear(len(self.places) * spec.dim, hidden), nn.ReLU(), last)
        else:
            self.gate_I = nn.Parameter(torch.zeros(num_inputs))

    def forward(self, fields_NED: Tensor, x_NI: Tensor) -> Tensor:
        gates = self.net(fields_NED[:, self.places].flatten(1)) if self.places else self.gate_I
        return 2 * torch.sigmoid(gates) * x_NI


class BilinearFusion(nn.Module):
    """b + w a + v b + the sum over heads of a head's a^T W b, for each label."""

    def __init__(self, num_first: int, num_second: int, num_heads: int, num_labels: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.linear = nn.Linear(num_first + num_second, num_labels)
        head_first, head_second = num_first // num_heads, num_second // num_heads
        bound = num_first**-0.5
        self.weight_LHAB = nn.Parameter(
            torch.empty(num_labels, num_heads, head_first, head_second).uniform_(-bound, bound)
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        linear_NL: Tensor = self.linear(torch.cat([first, second], dim=1))
        first_HNA = first.reshape(-1, self.num_heads, self.weight_LHAB.shape[2]).transpose(0, 1)
        second_HNB = second.reshape(-1, self.num_heads, self.weight_LHAB.shape[3]).transpose(0, 1)
        fused_LHNB: Tensor = first_HNA @ self.weight_LHAB
        fused_LN = (fused_LHNB * second_HNB).float().sum(dim=(1, 3))
        return linear_NL.float() + fused_LN.t()


class FinalMLP(CalibratedModel):
    """`first` and `second` are the layers of the two streams; `first_gate` and `second_gate` name fields for the gates.

    The paper gates one stream by the user and one by the item. A field is any id feature. `heads` must divide both
    streams' last layers.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        first: Sequence[int] = (128,),
        second: Sequence[int] = (128,),
        first_gate: Sequence[str] = (),
        second_gate: Sequence[str] = (),
        gate_hidden: int = 64,
        heads: int = 4,
    ) -> None:
        super().__init__(spec)
        num_inputs = spec.num_fields * spec.dim + self.normalizer.num_outputs
        sizes = [check_layer_sizes("first", first), check_layer_sizes("second", second)]
        num_heads = check_size("heads", heads)
        if not all(sizes) or any(stream[-1] % num_heads for stream in sizes):
            raise ValueError(
                f"heads = {num_heads} must divide the last layers of first = {list(first)} and second = {list(second)}"
            )
        hidden = check_size("gate_hidden", gate_hidden)
        names = [check_names("first_gate", first_gate), check_names("second_gate", second_gate)]
        places = [[spec.field_index(name) for name in stream] for stream in names]
        self.gates = nn.ModuleList(FeatureGate(spec, stream, num_inputs, hidden) for stream in places)
        self.streams = nn.ModuleList(perceptron([num_inputs, *stream], last_is_linear=False) for stream in sizes)
        self.fusion = BilinearFusion(sizes[0][-1], sizes[1][-1], num_heads, spec.num_labels)

    def last_parameters(self) -> Iterator[nn.Parameter]:
        return self.fusion.parameters()

    def deep_scores(self, fields_NED: Tensor, dense_NX: Tensor) -> Tensor:
        x_NI = torch.cat([fields_NED.flatten(1), dense_NX], dim=1)
        first, second = (stream(gate(fields_NED, x_NI)) for gate, stream in zip(self.gates, self.streams, strict=True))
        deep_NL: Tensor = self.fusion(first, second)
        return deep_NL
