"""The dense net's optimizers are torch's, bit for bit, without its compiler."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from springtide.app.training.config import DenseOptimizerConfig
from springtide.app.training.optimization.dense_optimizer import build_optimizer, optimizer_tensors, restore_optimizer


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 1).double())


def learn(model: nn.Module, optimizer, steps: int) -> None:
    random = torch.Generator().manual_seed(0)
    for step in range(steps):
        optimizer.zero_grad()
        hidden = model[1](model[0](torch.randn(9, 7, generator=random)))
        # the last layer has no gradient at first
        loss = model[2](hidden.double()).square().sum() if step else hidden.sum()
        loss.backward()
        optimizer.step()


class Lion(torch.optim.Optimizer):
    """The pseudocode of Chen et al. 2023."""

    def __init__(self, parameters, lr: float, beta1: float, beta2: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (beta1, beta2)})

    @torch.no_grad()
    def step(self) -> None:
        (group,) = self.param_groups
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
            parameter -= group["lr"] * torch.sign(beta1 * mean + (1 - beta1) * parameter.grad)
            mean.copy_(beta2 * mean + (1 - beta2) * parameter.grad)


BETAS = {"betas": (0.8, 0.999), "eps": 1e-6, "fused": True}
PEERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, **BETAS),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.0, **BETAS),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01, eps=1e-6, foreach=False),
    "lion": lambda parameters: Lion(parameters, 0.01, 0.8, 0.999),
}


@pytest.mark.parametrize("name", PEERS)
def test_steps_equal_torch_bit_by_bit(name: str) -> None:
    ours, theirs = net(), net()
    more = {"name": "sgd", "momentum": 0.9} if name == "momentum" else {"name": name}
    settings = DenseOptimizerConfig(lr=0.01, beta1=0.8, eps=1e-6, **more)
    peer = PEERS[name](theirs.parameters())
    optimizer = build_optimizer(settings, ours)
    learn(ours, optimizer, 3)
    learn(theirs, peer, 3)
    # and on from what a version carries
    arrays = {name: tensor.numpy().copy() for name, tensor in optimizer_tensors(optimizer, ours).items()}
    optimizer = build_optimizer(settings, ours)
    restore_optimizer(optimizer, ours, arrays)
    learn(ours, optimizer, 3)
    learn(theirs, peer, 3)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        if name == "lion":  # the peer rounds a mean and its parts apart
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(mine, other)


def test_a_net_without_parameters_can_be_stepped() -> None:
    optimizer = build_optimizer(DenseOptimizerConfig(), nn.ReLU())
    optimizer.step()
    assert optimizer_tensors(optimizer, nn.ReLU()) == {}


def test_no_compiler_is_imported_for_a_step() -> None:
    code = (
        "import sys, torch\nfrom springtide.app.training.config import DenseOptimizerConfig\n"
        "from springtide.app.training.optimization.dense_optimizer import build_optimizer\n"
        "net = torch.nn.Linear(2, 1); optimizer = build_optimizer(DenseOptimizerConfig(), net)\n"
        "net(torch.ones(1, 2)).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
