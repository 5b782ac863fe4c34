"""One step of all ranks: each has a part of the batch, and all take the same step of the dense net."""

# N samples of all ranks, L labels, F dense features, R ranks
import functools
import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from springtide.app.training.optimization.net_update import NetUpdate
from springtide.app.training.step.learning_step import Gradients, LocalBatch, Samples, Scores, StepDecision
from springtide.embeddings.errors import ShardError
from springtide.embeddings.sharding.exchange import Exchange
from springtide.embeddings.sharding.row_format import Precision
from springtide.stream.columns import Batch

WORD_BITS = 62  # of facts that travel as one number


class GlobalBatch(LocalBatch):
    """The batches of all ranks as one, in the order of ranks. Every rank makes the same calls in the same order."""

    def __init__(
        self,
        exchange: Exchange,
        model: nn.Module,
        precision: Precision,
        update: NetUpdate,
        *,
        seed: int = 0,
        has_late: bool = False,
    ) -> None:
        """`update`: of the net. What it gathers over several batches is summed over the ranks when it is applied.

        `seed`: of random numbers that differ from rank to rank and from step to step, for dropout. `has_late`: weights
        of samples have factors, of labels whose events may come late; they travel, also from a rank without samples.
        """
        super().__init__(update)
        self.exchange, self.model, self.seed, self.has_late = exchange, model, seed, has_late
        update.gathered.share(self._merge, is_first=exchange.rank == 0)
        self._dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision.dense]

    def vote(self, batch: Batch, step: int, *, is_prepared: bool, knows_next: bool) -> StepDecision:
        exchange = self.exchange
        own = [len(batch), batch.num_scored, batch.grade_N is not None, is_prepared, knows_next]
        numbers = exchange.all_gather_numbers(own)
        self._num_samples_R, num_scored_R, has_grades, prepared, known = map(list, zip(*numbers, strict=True))
        decision = StepDecision(
            sum(self._num_samples_R),
            sum(num_scored_R),
            sum(num_scored_R[: exchange.rank]),
            any(has_grades),
            all(prepared),
            any(known),
        )
        if decision.num_samples:  # a step that is repeated draws the same
            torch.manual_seed(((self.seed * 0x9E3779B1 + step) * exchange.num_ranks + exchange.rank) % 2**63)
        return decision

    def all_gather(self, rows_NX: Tensor) -> Tensor:
        return self.exchange.all_gather("samples", rows_NX.contiguous(), self._num_samples_R)

    def reduce(self, samples: Samples, scores: Scores) -> Gradients:
        loss, weight, norm = self.all_reduce(scores.loss.detach(), scores.weight)
        return Gradients(self.join(samples), loss.detach(), weight, norm)

    def join(self, samples: Samples) -> Samples:
        """Return the columns of all ranks' samples."""
        columns = [samples.dense_NF, samples.labels_NL, samples.weights_N[:, None], samples.logits_NL]
        if self.has_late:
            late_NL = samples.late_NL
            columns.append(torch.ones_like(samples.labels_NL) if late_NL is None else late_NL)
        together = self.all_gather(torch.cat(columns, dim=1).float())
        parts = [part.contiguous() for part in torch.split(together, [column.shape[1] for column in columns], dim=1)]
        return Samples(parts[0], parts[1], parts[2][:, 0], parts[3], parts[4] if self.has_late else None)

    def all_reduce(self, loss: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make the parameters' gradients those of all ranks; return the sums of loss and weight, and the norm.

        Gradients that are gathered stay this rank's own; the norm is then the root of the sum of the ranks' squares.
        """
        if self.update.is_gathering:
            loss, weight = loss.detach().float(), weight.float()
            sums = torch.stack([loss, weight, self.update.gradient_norm().to(loss).square()])
            self.exchange.all_reduce("dense", sums)
            return sums[0], sums[1], sums[2].sqrt()
        parameters = list(self.model.parameters())
        numbers = torch.stack([loss.detach().float(), weight.float()])
        sums, gradients = self._add_up([one.grad for one in parameters], numbers, self._dtype)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return sums[0], sums[1], self.update.gradient_norm()

    def _merge(self, gathered: dict[nn.Parameter, Tensor], exact: bool) -> dict[nn.Parameter, Tensor]:
        """Return what all ranks have gathered; `exact`: in float32."""
        parameters, nothing = list(self.model.parameters()), self.update.gathered.weight.new_zeros(0)
        dtype = torch.float32 if exact else self._dtype
        _, sums = self._add_up([gathered.get(one) for one in parameters], nothing, dtype)
        return {one: total for one, total in zip(parameters, sums, strict=True) if total is not None}

    def _add_up(
        self, here: list[Tensor | None], numbers: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return sums over all ranks: of numbers, and of what is here for each parameter; None if it is on no rank.

        `dtype`: in which the parameters' travel.
        """
        parameters, sums, num_numbers = list(self.model.parameters()), numbers.float(), len(numbers)
        has: Sequence[float] = [float(one is not None) for one in here]
        if self.update.on_device:
            has = self._on_any_rank([one is not None for one in here])
        else:
            sums = torch.cat([sums, torch.tensor(has)])
        gradients = [
            torch.zeros_like(parameter) if one is None else one for parameter, one in zip(parameters, here, strict=True)
        ]
        flat = torch.cat([gradient.reshape(-1).to(dtype) for gradient in gradients]) if gradients else sums[:0]
        if dtype is torch.float32:
            flat = torch.cat([flat, sums])
            self.exchange.all_reduce("dense", flat)
            flat, sums = torch.split(flat, [len(flat) - len(sums), len(sums)])
        else:
            self.exchange.all_reduce("dense", flat)
            self.exchange.all_reduce("dense", sums)
        pieces = torch.split(flat, [one.numel() for one in parameters]) if parameters else ()
        there = zip(parameters, pieces, has if self.update.on_device else sums[num_numbers:].tolist(), strict=True)
        totals = [piece.reshape(one.shape).to(one.dtype) if num_ranks else None for one, piece, num_ranks in there]
        return sums[:num_numbers], totals

    def _on_any_rank(self, facts: Sequence[bool]) -> list[bool]:
        """Return which of these are true on any rank. The hosts know them: no device is waited for."""
        if not facts:
            return []
        words = [
            sum(fact << bit for bit, fact in enumerate(facts[start : start + WORD_BITS]))
            for start in range(0, len(facts), WORD_BITS)
        ]
        together = [
            functools.reduce(operator.or_, of_ranks)
            for of_ranks in zip(*self.exchange.all_gather_numbers(words), strict=True)
        ]
        return [bool(together[place // WORD_BITS] >> place % WORD_BITS & 1) for place in range(len(facts))]

    def require_same(self, tensors: Callable[[], Mapping[str, Tensor]]) -> None:
        checksums = [numbers[0] for numbers in self.exchange.all_gather_numbers([checksum_of(tensors())])]
        different = [rank for rank, one in enumerate(checksums) if one != checksums[0]]
        if different:
            raise ShardError(
                f"the dense net of rank {', '.join(map(str, different))} differs from that of rank 0: start all ranks "
                "again, they go on from the newest version; if it happens again, use the same processors and "
                "[train] threads for all ranks"
            )


def checksum_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the CRC-32 of names and bytes."""
    checksum = 0
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(name.encode(), checksum)
        checksum = zlib.crc32(tensor.detach().cpu().numpy().tobytes(), checksum)
    return checksum


def without_samples(batch: Batch) -> Batch:
    """Return an empty batch of the same columns: what a rank gives that has nothing to learn."""
    return replace(
        batch,
        features=batch.features.slice(0, 0),
        labels_NL=batch.labels_NL[:0],
        weights_N=batch.weights_N[:0],
        event_ms_N=batch.event_ms_N[:0],
        record_ms_N=batch.record_ms_N[:0],
        rates_N=None if batch.rates_N is None else batch.rates_N[:0],
        grade_N=None if batch.grade_N is None else batch.grade_N[:0],
        served_N=None if batch.served_N is None else batch.served_N[:0],
        request_N=None if batch.request_N is None else batch.request_N[:0],
        group_N=None if batch.group_N is None else batch.group_N[:0],
        signals_N=None if batch.signals_N is None else batch.signals_N[:0],
        numbers_NK=None if batch.numbers_NK is None else batch.numbers_NK[:0],
        shares_NL=None if batch.shares_NL is None else batch.shares_NL[:0],
    )
