"""The keys of `[train]`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.training.step.dense_optimizer import DenseOptimizerConfig

# splitting a smaller batch costs more than it saves, and waiting for a busy core costs a hundred times that
SPLIT_SAMPLES = 1024
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How samples are learned. `bfloat16`: "auto" = where the processor has it and a batch is large enough to gain.

    `device`: "auto" = "cpu". `capture`: the dense step of full batches is a CUDA graph.
    """

    device: str = "auto"
    batch_size: int = 4096
    min_batch_size: int = 0  # so many are learned as soon as the learner has nothing else to do; 0: whole batches only
    max_wait_seconds: float = 0.2
    optimizer: Mapping[str, Any] = field(default_factory=lambda: {"name": "adam", "lr": 0.001})
    window_samples: int = 20_000
    seed: int = 0
    threads: int = 0  # 0 = one a core, and one in all where batches are small: see num_threads
    bfloat16: str | bool = "auto"
    capture: bool = False

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"[train] device must be one of {', '.join(DEVICES)}, not {self.device!r}")
        if self.batch_size < 1:
            raise ValueError(f"[train] batch_size must be at least 1, not {self.batch_size}")
        if not 0 <= self.min_batch_size <= self.batch_size:
            raise ValueError(
                f"[train] min_batch_size must be in 0..{self.batch_size} (batch_size), not {self.min_batch_size}"
            )
        if not self.max_wait_seconds >= 0:
            raise ValueError(f"[train] max_wait_seconds must be at least 0, not {self.max_wait_seconds}")
        if self.window_samples < 1:
            raise ValueError(f"[train] window_samples must be at least 1, not {self.window_samples}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"[train] seed must be in 0..2**63 - 1, not {self.seed}")
        if not 0 <= self.threads <= 256:
            raise ValueError(f"[train] threads must be in 0..256, not {self.threads}")
        if self.bfloat16 not in ("auto", True, False):
            raise ValueError(f'[train] bfloat16 must be "auto", true or false, not {self.bfloat16!r}')
        if self.capture and self.device != "cuda":
            raise ValueError('[train] capture makes CUDA graphs: it wants device = "cuda"')
        DenseOptimizerConfig.of(self.optimizer)

    @property
    def num_threads(self) -> int:
        """Threads of a step: a function of the settings and the machine, for sums depend on it."""
        if self.threads or self.batch_size < SPLIT_SAMPLES:
            return self.threads or 1
        return os.cpu_count() or 1
