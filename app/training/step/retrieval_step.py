"""The step of two towers: scores of the samples' own items, and a loss over the items of the whole batch."""

# N samples, L labels
import torch
from springtide_client.model.inputs import ModelInputs
from torch import Tensor

from app.models.retrieval.two_tower import TwoTower
from app.training.step.dense_optimizer import Optimizer
from app.training.step.dense_step import StepOutcome, gradient_norm, observe


class RetrievalStep:
    """On a device it reads nothing back, on the host a step whose gradients are not finite updates nothing."""

    def __init__(self, model: TwoTower, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def __call__(
        self, inputs: ModelInputs, labels_NL: Tensor, weights_N: Tensor, ids_N: Tensor, *, bfloat16: bool
    ) -> StepOutcome:
        """1. Score. 2. Count the items. 3. Update rows and net. `ids_N` are the samples' items, int64."""
        model = self.model
        with torch.autocast(inputs.dense.device.type, torch.bfloat16, enabled=bfloat16):
            users_NO, items_NO = model.vectors(*inputs)
        with torch.no_grad():
            logits_NL = model.logits(users_NO, items_NO)
        frequencies = model.frequency.after(ids_N)
        loss, weight = model.in_batch_loss(users_NO, items_NO, ids_N, frequencies, labels_NL, weights_N)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        skipped = ~torch.isfinite(gradient_norm(model))
        if not skipped.is_cuda:
            if not skipped:
                self._observe(inputs, logits_NL, labels_NL, weights_N)
                model.frequency.observe(frequencies)
                self.optimizer.step()
        else:
            before = [buffer.clone() for buffer in model.buffers()]
            self._observe(inputs, logits_NL, labels_NL, weights_N)
            model.frequency.observe(frequencies)
            for buffer, old in zip(model.buffers(), before, strict=True):
                buffer.copy_(torch.where(skipped, old, buffer))
            self.optimizer.step(skipped)
        return StepOutcome(logits_NL, loss.detach(), weight, skipped)

    def _observe(self, inputs: ModelInputs, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        observe(self.model, inputs, logits_NL, labels_NL, weights_N)
