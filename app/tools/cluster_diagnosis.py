"""Diagnosis of several ranks that learn one model, for `springtide check`."""

from typing import Literal

import torch
from torch.distributed import is_nccl_available

from springtide.app.config.load import Config


def check_cluster(config: Config) -> tuple[Literal["ok", "note"], str]:
    """Say how several ranks would exchange what they learn, or what keeps them from it."""
    cluster = config.cluster
    start = "several ranks (`springtide train --ranks R`)"
    if config.train.device == "cuda":
        num_gpus = torch.cuda.device_count()
        if config.train.cuda_graphs:
            return "note", "cluster: only one rank can learn so, as [train] cuda_graphs does not go with several"
        if num_gpus < 2 or not is_nccl_available():
            return "note", (
                f"cluster: several ranks need a GPU each and NCCL: torch sees {num_gpus} here, and "
                f'{"has" if is_nccl_available() else "lacks"} NCCL; with [train] device = "cpu" they learn on the CPU'
            )
        start = f"up to {num_gpus} ranks (`springtide train --ranks R`), one for each GPU,"
    formats = {"rows": cluster.rows, "gradients": cluster.gradients, "those of the net": cluster.dense_gradients}
    text = ", ".join(f"{name} as {kind}" for name, kind in formats.items())
    return (
        "ok",
        f"cluster: {start} would exchange {text}; one that is silent for {cluster.timeout_seconds:g} s counts as dead",
    )
