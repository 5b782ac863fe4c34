"""DLRM-small over clicks, which train.e2e and others learn: bottom 512-256, top 512-256, rows of dim 16."""

# B batch, C categorical, F dense features, D dimension
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from springtide.app.models.config import ModelConfig
from springtide.app.models.interface import ModelSpec
from springtide.app.models.registry import build_model
from tests.bench.workloads.clicks import CATEGORICAL, DENSE, SCHEMA, TOPIC
from tests.support.config import Section

MODEL = ModelConfig(name="dlrm", options={"bottom": [512, 256], "top": [512, 256], "wide": False, "rows_on_top": False})
DIM = 16
SPEC = ModelSpec.of(SCHEMA, DIM)
# of springtide.toml, as a layer of tests.support.config
SETTINGS: Section = {
    "source": {"topic": TOPIC},
    "schema": {"label": "click", "categorical": CATEGORICAL, "dense": DENSE},
    "table": {"dim": DIM, "device_bytes": "1GiB"},
    "model": {"name": MODEL.name, "options": MODEL.options, "wide": False},  # whatever else a step costs hides the log
}


def logits_of(net: nn.Module, rows_BCD: Tensor, dense_BF: Tensor, *, bfloat16: bool) -> Tensor:
    """Return the logits in float32, (B, 1); there are no lists and no histories."""
    num, _, dim = rows_BCD.shape
    none = rows_BCD.new_zeros(num, 0, dim), rows_BCD.new_zeros(num, 0, 1, dim), torch.zeros(num, 0, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits_B1: Tensor = net(rows_BCD, *none, dense_BF)
    return logits_B1.float()


class DenseOnly:
    """The dense net alone on prepared tensors: the limit of any input."""

    def __init__(self, batch_size: int, *, bfloat16: bool) -> None:
        self.batch_size, self.bfloat16 = batch_size, bfloat16
        self.net = build_model(MODEL, SPEC, seed=0)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.001)
        self.rows_BCD = (torch.randn(batch_size, len(CATEGORICAL), DIM) * 0.01).requires_grad_()
        self.dense_BF = torch.rand(batch_size, len(DENSE))
        self.labels_B1 = (torch.rand(batch_size, 1) < 0.3).float()

    def run(self, num_samples: int) -> float:
        for _ in range(num_samples // self.batch_size):
            self.step()
        return 0.0

    def step(self) -> None:
        logits_B1 = logits_of(self.net, self.rows_BCD, self.dense_BF, bfloat16=self.bfloat16)
        loss = binary_cross_entropy_with_logits(logits_B1, self.labels_B1)
        self.optimizer.zero_grad()
        self.rows_BCD.grad = None
        loss.backward()
        self.optimizer.step()
