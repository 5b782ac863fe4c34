"""Each encoder equals its reference, forward and backward, for histories of any length; padding is never seen."""

import pytest
import torch
from torch import Tensor, nn

from springtide.app.models.sequence.din import TargetAttention
from springtide.app.models.sequence.encoder_block import MultiHeadAttention, naive_attention
from springtide.app.models.sequence.hstu import HSTUEncoder
from springtide.app.models.sequence.sasrec import CausalEncoder
from springtide.app.models.sequence.sequence_model import History, without_padding
from springtide.app.models.sequence.transformer import TargetEncoder
from tests.app.models.sequence import reference

DIM, LONGEST = 6, 4
LENGTHS = [3, 0, LONGEST, 1]
SIZES = {"blocks": 2, "num_heads": 2, "head_dim": 3}
ENCODERS = {
    "din": (lambda: TargetAttention(DIM, [5, 3]), reference.target_attention),
    "din with softmax": (lambda: TargetAttention(DIM, [5], softmax=True), reference.target_attention),
    "sasrec": (lambda: CausalEncoder(DIM, LONGEST, **SIZES, hidden=7), reference.causal_encoder),
    "transformer": (lambda: TargetEncoder(DIM, LONGEST, **SIZES, hidden=7), reference.target_encoder),
    "one block": (
        lambda: TargetEncoder(DIM, LONGEST, blocks=1, num_heads=1, head_dim=4, hidden=7),
        reference.target_encoder,
    ),
    "hstu": (lambda: HSTUEncoder(DIM, LONGEST + 1, **SIZES), reference.hstu_encoder),
}


@pytest.fixture(params=ENCODERS)
def encoder(request: pytest.FixtureRequest):
    """Return an encoder whose parameters are all random, and its reference."""
    make, plain = ENCODERS[request.param]
    draw = torch.Generator().manual_seed(1)
    net = make().double()
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw, dtype=torch.float64) * 0.5
    return net, plain


def random_history(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return a target, rows and time gaps, float64 leaves."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [(len(LENGTHS), DIM), (len(LENGTHS), LONGEST, DIM), (len(LENGTHS), LONGEST, DIM)]
    target, rows, gaps = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)
    return target.requires_grad_(), rows.requires_grad_(), gaps.requires_grad_()


def of_history(net: nn.Module, target: Tensor, rows: Tensor, gaps: Tensor | None, length: Tensor) -> Tensor:
    rows, gaps = without_padding(rows, length), None if gaps is None else without_padding(gaps, length)
    result: Tensor = net(target, History(rows, length, gaps))
    return result


@pytest.mark.parametrize("with_gaps", [False, True])
def test_values_and_gradients_are_those_of_the_reference(encoder, with_gaps) -> None:
    net, plain = encoder
    leaves = random_history()
    target, rows, gaps = leaves
    got = of_history(net, target, rows, gaps if with_gaps else None, torch.tensor(LENGTHS))
    seen_gaps = gaps if with_gaps else torch.zeros_like(gaps)
    expected = torch.stack(
        [plain(net, target[n], list(rows[n, :num]), list(seen_gaps[n, :num])) for n, num in enumerate(LENGTHS)]
    )
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    weights = torch.randn(got.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    wanted = [*leaves, *net.parameters()]
    gradients = torch.autograd.grad((got * weights).sum(), wanted, allow_unused=True, materialize_grads=True)
    references = torch.autograd.grad((expected * weights).sum(), wanted, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(gradients, references, rtol=1e-8, atol=1e-9)


def test_padding_is_not_seen_and_gets_no_gradient(encoder) -> None:
    net, _ = encoder
    target, rows, gaps = random_history()
    length = torch.tensor(LENGTHS)
    is_padding = torch.arange(LONGEST) >= length[:, None]
    got = of_history(net, target, rows, gaps, length)
    for padding in (torch.nan, torch.inf, 1e30):
        others = [torch.where(is_padding[..., None], padding, part).detach().requires_grad_() for part in (rows, gaps)]
        again = of_history(net, target, *others, length)
        torch.testing.assert_close(again, got, rtol=0, atol=0)
        for gradient in torch.autograd.grad(again.sum(), others, allow_unused=True, materialize_grads=True):
            assert torch.isfinite(gradient).all()
            assert (gradient[is_padding] == 0).all()
    longer = [torch.cat([part, torch.ones_like(part)], dim=1) for part in (rows, gaps)]
    torch.testing.assert_close(of_history(net, target, *longer, length), got, rtol=1e-12, atol=1e-12)


def test_a_batch_without_any_history_gives_finite_values(encoder) -> None:
    net, _ = encoder
    target, rows, gaps = random_history()
    got = of_history(net, target, rows, gaps, torch.zeros(len(LENGTHS), dtype=torch.int64))
    got.sum().backward()
    assert torch.isfinite(got).all()
    assert rows.grad is None or (rows.grad == 0).all()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in net.parameters())


def test_an_attention_without_mask_and_positions_knows_no_order() -> None:
    attention = MultiHeadAttention(DIM, num_heads=2, head_dim=3).double()
    _, rows, _ = random_history()
    order = torch.randperm(LONGEST, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(attention(rows, rows, None)[:, order], attention(rows[:, order], rows[:, order], None))


@pytest.mark.parametrize("is_causal", [False, True])
def test_naive_attention_is_torchs(is_causal: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 2, 5, 4, generator=draw, requires_grad=True) for _ in range(3))
    mask = None if is_causal else torch.arange(5) < torch.tensor([1, 4, 5])[:, None, None, None]
    fused = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
    naive = naive_attention(query, key, value, mask, is_causal=is_causal)
    torch.testing.assert_close(naive, fused)
    parts = (query, key, value)
    torch.testing.assert_close(
        torch.autograd.grad(naive.square().sum(), parts), torch.autograd.grad(fused.square().sum(), parts)
    )
