"""Decides what a version carries of the dense net, and when its exact state is written beside the log.

A small net is carried whole by every version in which it has changed, so that a restart loses nothing. Of a large one,
followers get the parameters at a pace of their own, and the exact state (parameters, optimizer, random state) is copied
between two steps and written meanwhile. Both paces keep within `dense_cost` of the time.
"""

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from springtide.app.models.wide_part import NAME
from springtide.app.training.optimization.net_update import ACCUMULATED
from springtide.app.training.state.version_tensors import with_prefix
from springtide.app.training.step.learner import Learner
from springtide.app.version_log.config import LogConfig
from springtide.app.version_log.write.state_writer import PendingState
from springtide.app.version_log.write.writer import LogWriter, NetState
from springtide_client.format.tensors import BFLOAT16, Array, Arrays

WRITE_SECONDS_PER_BYTE = 1e-9  # processor time of encoding and writing, until it is measured
SAMPLED_NUMBERS = 1 << 14  # of the parameters, to see how far they have moved


class NetPublisher:
    """Follows one learner, from the version at the end of the log on. Called between two steps."""

    def __init__(
        self,
        config: LogConfig,
        learner: Learner,
        log: LogWriter,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._learner, self._log, self._clock = config, learner, log, clock
        self._exact_step = learner.steps  # of the newest exact state
        # of the parameters that followers have; those of an exact state beside the log they may not have yet
        self._shown_step = learner.steps if log.exact_state == 0 else -1
        self._shown = NetBuffers(bfloat16=config.dense_dtype == "bfloat16")
        self._exact = NetBuffers()
        self._shown_until = 0  # the version whose arrays are in the buffers of `_shown`
        self._shown_at = self._exact_at = clock()
        self._shown_cost = self._exact_copy = 0.0  # seconds
        self._sample = self._sampled()
        self._num_state_bytes = self.num_state_bytes

    def take(self, *, exact: bool) -> tuple[Arrays, NetState]:
        """Return what the next version carries of the net, and what becomes of its exact state.

        `exact`: a trainer must be able to continue from this version, and followers get the net as it is now. Waits for
        a state that is still being written.
        """
        learner = self._learner
        if self._num_state_bytes <= self._config.exact_bytes:
            return self._take_whole(), NetState()
        is_exact = learner.steps == self._exact_step
        state = None
        if not is_exact and (exact or self.is_exact_due):
            state = self._capture()
        arrays = self._take_parameters() if self._is_shown_due(at_once=exact) else {}
        num_bytes = sum(array.nbytes for array in arrays.values())
        return self._wide_arrays() | arrays, NetState(state, is_exact, num_bytes)

    def _wide_arrays(self) -> Arrays:
        """Return the wide part's own arrays, which every version has: its rows mean nothing without them."""
        part = self._learner.wide
        if part is None:
            return {}
        return {f"dense.{NAME}.{name}": array.copy() for name, array in part.arrays.named().items()}

    def on_appended(self, version: int) -> None:
        """The version has the number; what `take` returned is part of it."""
        if self._shown_until < 0:
            self._shown_until = version

    @property
    def num_state_bytes(self) -> int:
        """The size of parameters, optimizer state and averages, without gathered gradients, whose size changes."""
        return num_bytes_of(self._learner.dense_tensors(), self._learner.state_tensors())

    def _take_whole(self) -> Arrays:
        learner = self._learner
        if learner.steps == self._exact_step:
            return {}
        self._exact_step = self._shown_step = learner.steps
        is_rounded = self._config.dense_dtype == "bfloat16"
        dense, state = learner.dense_tensors(), learner.state_tensors()
        # buffers of their own, which nothing overwrites
        arrays = with_prefix("dense.", NetBuffers(bfloat16=is_rounded).fill(learner.served_tensors()))
        if is_rounded or learner.serves_averages:
            arrays |= with_prefix("state.parameters.", NetBuffers().fill(dense))
        arrays |= with_prefix("state.", NetBuffers().fill(state))
        self._num_state_bytes = num_bytes_of(dense, state)
        return arrays | {"state.random": torch.get_rng_state().numpy()}

    @property
    def is_shown(self) -> bool:
        """True if followers have the newest parameters."""
        return self._shown_step == self._learner.steps

    @property
    def is_exact_due(self) -> bool:
        """True if the next version should have an exact state, and the one before is written."""
        threads = torch.get_num_threads()
        write = self._log.states.cpu_seconds or self.num_state_bytes * WRITE_SECONDS_PER_BYTE
        seconds = self._paced(self._exact_copy + write / threads)
        is_time = self._clock() - self._exact_at >= max(self._config.durable_seconds, seconds)
        return is_time and self._log.states.is_idle

    def _is_shown_due(self, *, at_once: bool) -> bool:
        """Return True if followers should get the parameters now: they have moved enough, or it is time."""
        elapsed, published = self._clock() - self._shown_at, self._log.published
        if self.is_shown or published is None or self._shown_until > published.number:
            return False  # or the parameters of the last time are still being written
        if at_once or elapsed < self._paced(self._shown_cost):
            return at_once
        return elapsed >= self._config.dense_seconds or self._moved() >= self._config.dense_change

    def _paced(self, cost_seconds: float) -> float:
        """Return how long to wait after something that costs this much: each of the two may take half."""
        return cost_seconds * 2 / self._config.dense_cost

    def _capture(self) -> PendingState:
        """Copy the exact state. The learning thread pays for the copy, and for nothing else."""
        self._log.wait_for_state()
        began, learner = self._clock(), self._learner
        tensors = {f"state.parameters.{name}": tensor for name, tensor in learner.dense_tensors().items()}
        tensors |= {f"state.{name}": tensor for name, tensor in learner.state_tensors().items()}
        arrays = self._exact.fill(tensors) | {"state.random": torch.get_rng_state().numpy()}
        self._exact_step, self._exact_at = learner.steps, self._clock()
        self._exact_copy = self._exact_at - began
        return PendingState(arrays)

    def _take_parameters(self) -> Arrays:
        began, learner = self._clock(), self._learner
        arrays = with_prefix("dense.", self._shown.fill(learner.served_tensors()))
        self._shown_step, self._shown_at, self._shown_until = learner.steps, self._clock(), -1
        self._sample = self._sampled()
        num_bytes = sum(array.nbytes for array in arrays.values())
        write = num_bytes * WRITE_SECONDS_PER_BYTE / torch.get_num_threads()
        self._shown_cost = self._shown_at - began + write
        return arrays

    def _sampled(self) -> Tensor:
        """Return some of the parameters that followers get, spread evenly over all of them."""
        averages, model = self._learner.update.averages, self._learner.model
        served = model.parameters() if averages is None else averages.averages
        parameters = [parameter.detach().view(-1) for parameter in served]
        stride = max(1, sum(map(len, parameters)) // SAMPLED_NUMBERS)
        samples = [parameter[::stride].to("cpu", torch.float32) for parameter in parameters]
        return torch.cat(samples).clone() if samples else torch.zeros(0)

    def _moved(self) -> float:
        """Return the distance of the parameters from those that followers have, over their norm; sampled."""
        norm = float(self._sample.norm())
        return float((self._sampled() - self._sample).norm()) / norm if norm else float("inf")


def num_bytes_of(dense: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> int:
    """Return the bytes of parameters and state; gathered gradients come and go, and do not count."""
    kept = [tensor for name, tensor in state.items() if not name.startswith(ACCUMULATED)]
    return sum(tensor.nbytes for tensor in (*dense.values(), *kept))


class NetBuffers:
    """One buffer per tensor, made at the first use; with `bfloat16` those of float32 tensors hold bfloat16."""

    def __init__(self, *, bfloat16: bool = False) -> None:
        self._bfloat16 = bfloat16
        self._buffers: dict[str, Tensor] = {}

    def fill(self, tensors: Mapping[str, Tensor]) -> Arrays:
        """Copy the tensors and return arrays over the buffers, which the next call overwrites."""
        for name, tensor in tensors.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape:
                is_rounded = self._bfloat16 and tensor.dtype == torch.float32
                dtype = torch.bfloat16 if is_rounded else tensor.dtype
                buffer = self._buffers[name] = torch.empty(tensor.shape, dtype=dtype)
            buffer.copy_(tensor)
        return {name: _array_over(self._buffers[name]) for name in tensors}


def _array_over(buffer: Tensor) -> Array:
    if buffer.dtype == torch.bfloat16:
        return buffer.view(torch.int16).numpy().view(BFLOAT16)
    return buffer.numpy()
