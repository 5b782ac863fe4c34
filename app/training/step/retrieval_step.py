"""The step of two towers: scores of the samples' own items, and a loss over the items of the whole batch."""

# N samples, L labels
import torch
from torch import Tensor

from springtide.app.models.retrieval.two_tower import Frequencies, TwoTower
from springtide.app.training.optimization.net_update import NetUpdate
from springtide.app.training.step.dense_step import StepOutcome, observe, over_ranks
from springtide.app.training.step.global_batch import GlobalBatch, Samples
from springtide_client.model.inputs import ModelInputs


class RetrievalStep:
    """A step whose gradients are not finite updates nothing of the net. On a device nothing is read back."""

    def __init__(self, model: TwoTower, update: NetUpdate, global_batch: GlobalBatch | None = None) -> None:
        """`global_batch`: of many ranks' batches. A sample is ranked against the items of its own rank's batch."""
        self.model, self.update, self.global_batch = model, update, global_batch

    def __call__(
        self, inputs: ModelInputs, labels_NL: Tensor, weights_N: Tensor, ids_N: Tensor, *, bfloat16: bool
    ) -> StepOutcome:
        """1. Score. 2. Count the items. 3. Update rows and net. `ids_N` are the samples' items, int64."""
        model, global_batch = self.model, self.global_batch
        frequencies = model.frequency.after(ids_N if global_batch is None else global_batch.all_gather(ids_N))
        self.update.zero_grad()
        if len(ids_N):
            with torch.autocast(inputs.dense.device.type, torch.bfloat16, enabled=bfloat16):
                users_NO, items_NO = model.vectors(*inputs)
            with torch.no_grad():
                logits_NL = model.logits(users_NO, items_NO)
            loss, weight = model.in_batch_loss(users_NO, items_NO, ids_N, frequencies, labels_NL, weights_N)
            loss.backward()  # type: ignore[no-untyped-call]
        else:  # of many ranks
            logits_NL, loss, weight = labels_NL, labels_NL.sum(), weights_N.sum()
        samples = Samples(inputs.dense, labels_NL, weights_N, logits_NL)
        samples, loss, weight, norm = over_ranks(samples, loss, weight, self.update, global_batch)
        skipped = ~torch.isfinite(norm)
        if self.update.on_device:
            before = [buffer.clone() for buffer in model.buffers()]
            self._observe(samples, frequencies)
            for buffer, old in zip(model.buffers(), before, strict=True):
                buffer.copy_(torch.where(skipped, old, buffer))
        elif not skipped:
            self._observe(samples, frequencies)
        applied = self.update.apply(weight, norm, skipped)
        return StepOutcome(samples.logits_NL, loss, weight, skipped, *applied)

    def _observe(self, samples: Samples, frequencies: Frequencies) -> None:
        observe(self.model, samples)
        self.model.frequency.observe(frequencies)
