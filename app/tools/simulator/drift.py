"""Preferences that change: a stationary Gaussian process whose state is a function of (seed, time) alone."""

import numpy as np
import numpy.typing as npt

STEP_MS = 1_000
MEMORY_HALF_LIVES = 20  # what is older weighs less than 1e-6


class Drift:
    """An array of Ornstein-Uhlenbeck processes, stepped once a second.

    The state at a time is the sum of that second's and all earlier seconds' normals, each halved every half-life: it
    does not matter when one began to look, so a simulator that starts again finds the world where it should be.
    """

    def __init__(self, shape: tuple[int, ...], *, seed: int, half_life_seconds: float) -> None:
        self._shape = shape
        self._seed = seed
        self._decay = 0.5 ** (STEP_MS / 1_000 / half_life_seconds)
        self._memory = int(MEMORY_HALF_LIVES * half_life_seconds * 1_000 / STEP_MS)
        self._step: int | None = None
        self._state = np.zeros(shape)

    def at(self, now_ms: int) -> npt.NDArray[np.float64]:
        """The state at a time, of unit variance per element; the same array while the second lasts."""
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
