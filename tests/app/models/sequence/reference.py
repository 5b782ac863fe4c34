"""What the sequence models' encoders compute, an element and a head at a time, after the papers."""

# D dimension, A numbers of a head
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from springtide.app.models.sequence.din import TargetAttention
from springtide.app.models.sequence.encoder_block import EncoderBlock
from springtide.app.models.sequence.hstu import HSTUBlock, HSTUEncoder
from springtide.app.models.sequence.sasrec import CausalEncoder
from springtide.app.models.sequence.transformer import TargetEncoder

Rows = Sequence[Tensor]  # the rows of one sample's elements, oldest first


def target_attention(net: TargetAttention, target_D: Tensor, rows: Rows, gaps: Rows) -> Tensor:
    """Zhou et al. 2018, equation 3: the sum over the elements of a(element, target) * element."""
    weights = []
    for row_D, gap_D in zip(rows, gaps, strict=True):
        key_D = row_D + gap_D
        of_key, of_product = net.of_element.weight.chunk(2, dim=1)
        hidden = of_key @ key_D + of_product @ (key_D * target_D) + net.of_element.bias
        hidden = hidden + net.of_target.weight @ target_D
        for layer in net.unit:
            if isinstance(layer, nn.Linear):
                hidden = linear(layer, hidden)
            else:
                assert isinstance(layer, nn.PReLU)
                hidden = torch.stack([x if x > 0 else layer.weight[0] * x for x in hidden])
        weights.append(hidden[0])
    if net.softmax and weights:
        total = sum(weight.exp() for weight in weights)
        weights = [weight.exp() / total for weight in weights]
    return sum((w * row_D for w, row_D in zip(weights, rows, strict=True)), torch.zeros_like(target_D))


def causal_encoder(net: CausalEncoder, target_D: Tensor, rows: Rows, gaps: Rows) -> Tensor:
    """Kang & McAuley 2018: every block of every element in full; the newest one's state, zeros without elements."""
    if not rows:
        return torch.zeros_like(target_D)
    newest = len(rows) - 1
    states = [row + gap + net.positions.weight[newest - t] for t, (row, gap) in enumerate(zip(rows, gaps, strict=True))]
    for block in net.blocks:
        assert isinstance(block, EncoderBlock)
        states = encoder_block(block, states, lambda q: range(q + 1))
    return layer_norm(net.norm, states[newest])


def target_encoder(net: TargetEncoder, target_D: Tensor, rows: Rows, gaps: Rows) -> Tensor:
    """Chen et al. 2019 with the norms before: every block of every element in full; the target's state."""
    elements = [*(row + gap for row, gap in zip(rows, gaps, strict=True)), target_D]
    last = len(elements) - 1
    states = [element + net.positions.weight[last - t] for t, element in enumerate(elements)]
    for block in net.blocks:
        assert isinstance(block, EncoderBlock)
        states = encoder_block(block, states, lambda _: range(last + 1))
    return layer_norm(net.norm, states[last])


def hstu_encoder(net: HSTUEncoder, target_D: Tensor, rows: Rows, gaps: Rows) -> Tensor:
    """Zhai et al. 2024, equations 2 to 4, of every element in full; the target's state."""
    states, gaps = [*rows, target_D], [*gaps, torch.zeros_like(target_D)]
    for block in net.blocks:
        assert isinstance(block, HSTUBlock)
        states = hstu_block(block, states, gaps)
    return layer_norm(net.norm, states[-1])


def encoder_block(block: EncoderBlock, states: Rows, sees: Callable[[int], range]) -> list[Tensor]:
    """x + attention(norm(x)), then x + perceptron(norm(x)), for each element; `sees`: the elements a query looks at."""
    attention, normed = block.attention, [layer_norm(block.attention_norm, state) for state in states]
    after = []
    for q, state in enumerate(states):
        heads = []
        for h in range(attention.num_heads):
            query = head(linear(attention.query, normed[q]), h, attention.num_heads)
            keys = [head(linear(attention.key, normed[t]), h, attention.num_heads) for t in sees(q)]
            values = [head(linear(attention.value, normed[t]), h, attention.num_heads) for t in sees(q)]
            scores = [(query @ key / len(query) ** 0.5).exp() for key in keys]
            heads.append(sum(s / sum(scores) * value for s, value in zip(scores, values, strict=True)))
        attended = state + linear(attention.out, torch.cat(heads))
        first, _, second = block.feed_forward
        hidden = linear(first, layer_norm(block.feed_forward_norm, attended)).clamp(min=0)
        after.append(attended + linear(second, hidden))
    return after


def hstu_block(block: HSTUBlock, states: Rows, gaps: Rows) -> list[Tensor]:
    """Equations 2 to 4 for each element, which sees itself and those before it."""
    normed, after = [layer_norm(block.norm, state) for state in states], []
    for q, state in enumerate(states):
        gate, query = silu(linear(block.of_query, normed[q])).chunk(2)
        attended = []
        for h in range(block.num_heads):
            total = torch.zeros_like(head(query, h, block.num_heads))
            for t in range(q + 1):
                key, value = silu(linear(block.of_element, normed[t])).chunk(2)
                bias = block.distance_bias[q - t, h] + block.time_bias.weight[h] @ gaps[t]
                weight = silu(head(query, h, block.num_heads) @ head(key, h, block.num_heads) + bias)
                total = total + weight / block.max_length * head(value, h, block.num_heads)
            attended.append(total)
        after.append(state + linear(block.out, layer_norm(block.attended_norm, torch.cat(attended)) * gate))
    return after


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(layer, nn.Linear)
    y: Tensor = layer.weight @ x
    return y if layer.bias is None else y + layer.bias


def layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centered = x - x.mean()
    y: Tensor = norm.weight * centered / (centered.square().mean() + norm.eps).sqrt() + norm.bias
    return y


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def head(numbers: Tensor, h: int, num_heads: int) -> Tensor:
    """Return the numbers of head h."""
    size = len(numbers) // num_heads
    return numbers[h * size : (h + 1) * size]
