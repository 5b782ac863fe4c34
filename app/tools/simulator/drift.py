"""Drifting preferences: a stationary Gaussian process whose state is a function of (seed, time) alone."""

import numpy as np
import numpy.typing as npt

STEP_MS = 1_000
MEMORY_HALF_LIVES = 20  # older innovations weigh less than 1e-6


class Drift:
    """An array of Ornstein-Uhlenbeck processes with one step per second.

    The state at a time is the sum of all seconds' normal innovations, each halved every half-life. So it does not
    depend on when the simulator started: after a restart the world is where it would have been.
    """

    def __init__(self, shape: tuple[int, ...], *, seed: int, half_life_seconds: float) -> None:
        self._shape = shape
        self._seed = seed
        self._decay = 0.5 ** (STEP_MS / 1_000 / half_life_seconds)
        self._memory = int(MEMORY_HALF_LIVES * half_life_seconds * 1_000 / STEP_MS)
        self._step: int | None = None
        self._state = np.zeros(shape)

    def at(self, now_ms: int) -> npt.NDArray[np.float64]:
        """Return the state at a Unix time in ms, with unit variance per element; constant within a second."""
        step = now_ms // STEP_MS
        if self._step is None or not 0 <= step - self._step <= self._memory:
            self._step = step - self._memory
            self._state = np.zeros(self._shape)
        fresh = (1.0 - self._decay**2) ** 0.5
        while self._step < step:
            self._step += 1
            normals = np.random.default_rng((self._seed, self._step)).standard_normal(self._shape)
            self._state = self._decay * self._state + fresh * normals
        return self._state
