"""The dot interaction as a torch op: its kernels run as host C++, so that everything of torch around them is tested."""

import io
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from springtide.app.models.export.torch_export import example_inputs, export_model
from springtide.app.models.interactions import dot_interaction as ops
from springtide.app.models.interactions.dlrm import DLRM
from springtide.kernels.cuda.launchers.dot_interaction import DotInteraction
from tests.support.gpu_emulation.emulated_ops import device_of
from tests.support.model_specs import spec_of_sizes

SPEC = spec_of_sizes(4, 1, 0, 3, dim=8)


@pytest.fixture(scope="module")
def on_host() -> Iterator[None]:
    """The ops take tensors of the host while this lasts, with the GPU's kernels."""
    device = device_of("host", seed=2)
    device.threads = 256
    pairs = DotInteraction(device)
    ops.fused_dot_interaction.register_kernel("cpu", lambda vectors: ops.launch_products(pairs, vectors))
    ops.fused_dot_interaction_backward.register_kernel(
        "cpu", lambda vectors, grads: ops.launch_gradients(pairs, vectors, grads)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def places_of(num_vectors: int) -> Tensor:
    left, right = torch.triu_indices(num_vectors, num_vectors, 1)
    return left * num_vectors + right


@pytest.mark.usefixtures("on_host")
def test_the_gradients_are_those_of_the_products() -> None:
    for shape in [(3, 2, 5), (2, 6, 3)]:
        vectors = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(ops.fused_dot_interaction, (vectors,), fast_mode=True)


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_forward_and_backward_equal_plain_torch(dtype: torch.dtype, tolerance: float) -> None:
    ours = torch.randn(13, 9, 16).to(dtype).requires_grad_()
    plain = ours.detach().clone().requires_grad_()
    grads = torch.randn(13, 36).to(dtype)
    products, expected = ops.fused_dot_interaction(ours), ops.torch_dot_interaction(plain, places_of(9))
    torch.testing.assert_close(products, expected, rtol=tolerance, atol=tolerance)
    products.backward(grads)
    expected.backward(grads)
    torch.testing.assert_close(ours.grad, plain.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("on_host")
@pytest.mark.parametrize("transposed", [False, True])
def test_the_op_passes_torchs_opcheck(transposed: bool) -> None:
    vectors = torch.randn(5, 6, 4).transpose(1, 2) if transposed else torch.randn(5, 4, 6)
    torch.library.opcheck(ops.fused_dot_interaction_backward, (vectors, torch.randn(5, 6)))
    torch.library.opcheck(ops.fused_dot_interaction, (vectors.requires_grad_(),))


@pytest.mark.usefixtures("on_host")
def test_a_compiled_net_keeps_the_op_whole_and_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "springtide.app.models.interactions.dlrm.dot_interaction", lambda vectors, _: ops.fused_dot_interaction(vectors)
    )
    model, inputs = (
        DLRM(SPEC),
        [x + 0.1 * torch.randn_like(x) if x.is_floating_point() else x for x in example_inputs(SPEC)],
    )
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    def gradients(net: torch.nn.Module) -> list[Tensor]:
        model.zero_grad()
        net(*inputs).sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    expected = gradients(model)
    torch.testing.assert_close(gradients(torch.compile(model, backend=look, fullgraph=True)), expected)
    assert any("springtide" in name or "fused_dot_interaction" in name for name in seen)


def test_a_gpu_uses_the_op_and_an_export_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.device("cuda"):
        fields, places = torch.empty(7, 5, 8), places_of(5)
        assert ops.dot_interaction(fields, places).shape == (7, 10)
        taken = []
        monkeypatch.setattr(ops, "fused_dot_interaction", lambda vectors: taken.append(vectors))
        ops.dot_interaction(fields, places)
        ops.dot_interaction(torch.empty(7, 5, 8, dtype=torch.float16), places)  # no kernel of ours
        ops.dot_interaction(torch.empty(7, 65, 8), places_of(65))
        monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
        ops.dot_interaction(fields, places)
    assert len(taken) == 1
    program = torch.export.load(io.BytesIO(export_model(DLRM(SPEC), SPEC)))
    assert "springtide" not in str(program.graph)


@pytest.mark.gpu
def test_on_a_gpu_the_op_is_plain_torchs_in_a_graph_and_under_autocast() -> None:
    device_of("gpu")
    vectors = torch.randn(1025, 27, 16, device="cuda", requires_grad=True)
    plain = vectors.detach().clone().requires_grad_()
    places, grads = places_of(27).cuda(), torch.randn(1025, 351, device="cuda")
    torch.library.opcheck(ops.fused_dot_interaction, (vectors,))
    for bfloat16, tolerance in [(False, 1e-4), (True, 4e-2)]:
        vectors.grad = plain.grad = None
        with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
            products, expected = ops.dot_interaction(vectors, places), ops.torch_dot_interaction(plain, places)
        assert products.dtype == expected.dtype
        torch.testing.assert_close(products, expected, rtol=tolerance, atol=tolerance)
        products.backward(grads.to(products.dtype))
        expected.backward(grads.to(products.dtype))
        torch.testing.assert_close(vectors.grad, plain.grad, rtol=tolerance, atol=10 * tolerance)
    graph, held = torch.cuda.CUDAGraph(), vectors.detach()
    with torch.cuda.graph(graph):
        played = ops.fused_dot_interaction(held)
    held.mul_(2)
    graph.replay()
    torch.testing.assert_close(played, ops.torch_dot_interaction(held, places), rtol=1e-4, atol=1e-4)
