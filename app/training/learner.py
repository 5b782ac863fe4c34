"""One step of learning: every sample is scored before it is learned from. Knows no stream, no log, no clock."""

# N samples, L labels, K keys, D dimension
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from springtide_client.inputs import lookup_keys
from springtide_client.schema import Schema
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from app.models.interface import Model
from app.training.assembly import assemble_tensors, of_samples, parts_of
from app.training.config import TrainConfig
from app.training.dense_optimizer import DenseOptimizer, optimizer_arrays, restore_optimizer
from embeddings.errors import SpillError
from embeddings.prefetch import Prefetch
from embeddings.table import EmbeddingTable
from stream.columns import Batch

Arrays = dict[str, npt.NDArray[Any]]

# below this many samples a cast costs more than it saves, and ids seen few times deserve every bit
BFLOAT16_SAMPLES = 256


@dataclass(frozen=True)
class StepReport:
    """What a step saw: logits from before it learned. Labels are NaN where masked."""

    logits_NL: npt.NDArray[np.float32]
    labels_NL: npt.NDArray[np.float32]
    weights_N: npt.NDArray[np.float32]
    loss: float  # the mean over weights; NaN where nothing has weight

    @property
    def predictions_NL(self) -> npt.NDArray[np.float32]:
        """Probabilities."""
        return torch.sigmoid(torch.from_numpy(self.logits_NL)).numpy()


@dataclass(frozen=True)
class Keys:
    """What a batch asks of the table. The same arrays go into its prefetch and its look-up."""

    batch: Batch
    features_K: npt.NDArray[np.uint16]
    ids_K: npt.NDArray[np.int64]
    event_ms_K: npt.NDArray[np.int64]
    scores_K: npt.NDArray[np.float32] | None
    prefetch: Prefetch | None = None


class Learner:
    """Owns the dense net and its optimizer; moves the table's rows.

    `score_field`: the dense field with a sample's score, where the table evicts by scores of ours.
    """

    def __init__(
        self,
        model: nn.Module,
        table: EmbeddingTable,
        config: TrainConfig,
        schema: Schema,
        *,
        score_field: str | None = None,
    ) -> None:
        self.model, self.table, self.config, self.schema = model, table, config, schema
        self._score_column = None if score_field is None else schema.dense.index(score_field)
        self._upcoming: Keys | None = None
        self.optimizer = DenseOptimizer.of(config.optimizer).build(model)
        self.bfloat16 = config.bfloat16 is True or (config.bfloat16 == "auto" and has_bfloat16())
        self.refused_steps = 0  # of the dense net, for gradients that were not finite
        self.steps = 0
        model.train()

    def needs_cut(self, batch: Batch) -> bool:
        """Whether a version must be cut before this batch, whose evictions could overflow the table's side buffer."""
        num_keys = batch.features.categorical_NC.size + sum(len(ragged.ids_M) for ragged in batch.features.lists)
        return self.table.needs_cut(int(num_keys))

    def step(self, batch: Batch, upcoming: Batch | None = None) -> StepReport:
        """1. Look up. 2. Score. 3. Gradients; they move the rows. 4. Statistics. 5. Move the dense net.

        `upcoming`: the batch of the next step, if it is known: its rows come up from below while this one computes.
        A SpillError comes from the look-up, before anything has moved: the same batch may be tried again.
        """
        if len(batch) == 0:
            return StepReport(batch.labels_NL, batch.labels_NL, batch.weights_N, float("nan"))
        keys, self._upcoming = self._upcoming, None
        if keys is None or keys.batch is not batch:
            keys = self._keys_of(batch)
        lookup = self.table.lookup(
            keys.features_K, keys.ids_K, keys.event_ms_K, scores_K=keys.scores_K, prefetched=keys.prefetch
        )
        try:
            if upcoming is not None and len(upcoming):
                keys = self._keys_of(upcoming)
                with suppress(SpillError):  # the next look-up is told; this batch must not be looked up twice
                    prefetch = self.table.prefetch(keys.features_K, keys.ids_K, keys.event_ms_K)
                    self._upcoming = replace(keys, prefetch=prefetch)
            tensors = self.table.embed_parts(lookup, parts_of(self.schema, batch.features))
            inputs = assemble_tensors(self.schema, batch.features, tensors)
            if isinstance(self.model, Model):
                self.model.observe_inputs(inputs.dense)
            use_bfloat16 = self.bfloat16 and len(batch) >= BFLOAT16_SAMPLES
            with torch.autocast("cpu", torch.bfloat16, enabled=use_bfloat16):
                logits_NL = self.model(*inputs)
            logits_NL = logits_NL.float()

            labels_NL, weights_N = torch.from_numpy(batch.labels_NL), torch.from_numpy(batch.weights_N)
            loss, weight = weighted_loss(logits_NL, labels_NL, weights_N)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            lookup.release()
        self._move_dense(logits_NL.detach(), labels_NL, weights_N)
        self.steps += 1
        mean_loss = float(loss.detach()) / weight if weight > 0 else float("nan")
        return StepReport(logits_NL.detach().numpy(), batch.labels_NL, batch.weights_N, mean_loss)

    def _keys_of(self, batch: Batch) -> Keys:
        features_K, ids_K = lookup_keys(self.schema, batch.features)
        event_ms_K = of_samples(batch.features, batch.event_ms_N)
        scores_K = None
        if self._score_column is not None:
            # a sample without a score counts as one of 0
            scores_K = of_samples(batch.features, np.nan_to_num(batch.features.dense_NF[:, self._score_column], nan=0))
        return Keys(batch, features_K, ids_K, event_ms_K, scores_K)

    def _move_dense(self, logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> None:
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        # one overflow would stay in the net for ever; the table refuses such gradients row by row
        if not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            self.refused_steps += 1
            return
        if isinstance(self.model, Model):
            self.model.observe_labels(logits_NL, labels_NL, weights_N)
        self.optimizer.step()

    # what a version carries

    def dense_arrays(self) -> Arrays:
        """All parameters and buffers by name, copied."""
        return {name: value.detach().numpy().copy() for name, value in self.model.state_dict().items()}

    def optimizer_arrays(self) -> Arrays:
        """The dense optimizer's state by name, copied."""
        return optimizer_arrays(self.optimizer, self.model)

    def restore(self, dense: Mapping[str, npt.NDArray[Any]], optimizer: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from these; ValueError where they are another net's."""
        try:
            self.model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in dense.items()})
        except RuntimeError as error:
            raise ValueError(f"the log holds another net than [model] describes: {error}") from None
        restore_optimizer(self.optimizer, self.model, optimizer)


def weighted_loss(logits_NL: Tensor, labels_NL: Tensor, weights_N: Tensor) -> tuple[Tensor, float]:
    """The sum of the samples' losses times their weights, and the sum of the weights; masked labels (NaN) count not.

    A sum, not a mean: how far a row moves must not depend on how many strangers share its batch.
    """
    masked_NL = torch.isnan(labels_NL)
    weights_NL = torch.where(masked_NL, 0.0, weights_N[:, None])
    labels_NL = torch.where(masked_NL, 0.0, labels_NL)
    loss = binary_cross_entropy_with_logits(logits_NL, labels_NL, weights_NL, reduction="sum")
    return loss, float(weights_NL.sum())


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 in hardware; elsewhere it is slower than float32."""
    capabilities = torch.backends.cpu.get_cpu_capability(), torch.cpu._is_avx512_bf16_supported()
    return capabilities[1] or torch.cpu._is_amx_tile_supported()
