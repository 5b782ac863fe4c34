"""The step of two towers: scores of the samples' own items, and a loss over the items of the whole batch."""

# N samples, L labels
import torch
from springtide_client.model.inputs import ModelInputs
from torch import Tensor

from app.models.retrieval.item_frequency import Frequencies
from app.models.retrieval.two_tower import TwoTower
from app.training.step.dense_optimizer import Optimizer
from app.training.step.dense_step import StepOutcome, gradient_norm, observe


class RetrievalStep:
    """A step whose gradients are not finite updates nothing of the net."""

    def __init__(self, model: TwoTower, optimizer: Optimizer, *, on_device: bool) -> None:
        """`on_device`: submit everything and read nothing back."""
        self.model, self.optimizer, self.on_device = model, optimizer, on_device

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
        if self.on_device:
            before = [buffer.clone() for buffer in model.buffers()]
            self._observe(inputs, logits_NL, labels_NL, weights_N, frequencies)
            for buffer, old in zip(model.buffers(), before, strict=True):
                buffer.copy_(torch.where(skipped, old, buffer))
            self.optimizer.step(skipped)
        elif not skipped:
            self._observe(inputs, logits_NL, labels_NL, weights_N, frequencies)
            self.optimizer.step()
        return StepOutcome(logits_NL, loss.detach(), weight, skipped)

    def _observe(
        self, inputs: ModelInputs, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor, frequencies: Frequencies
    ) -> None:
        observe(self.model, inputs, logits_NL, labels_NL, weights_N)
        self.model.frequency.observe(frequencies)
