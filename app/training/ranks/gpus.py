"""Which GPU a rank takes: that of its number among the GPUs of its machine. No torch."""

import os
from collections.abc import MutableMapping

from springtide.app.errors import UserError

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
LOCAL_RANK_VARIABLE = "LOCAL_RANK"


def take_gpu(environment: MutableMapping[str, str] = os.environ) -> None:
    """Hide all GPUs but this rank's from this process: it is GPU 0 then, in every thread and for every library.

    Call it before anything looks for a GPU. UserError if CUDA_VISIBLE_DEVICES names too few.
    """
    number, visible = int(environment.get(LOCAL_RANK_VARIABLE, "0")), environment.get(VISIBLE_VARIABLE)
    gpus = [] if visible is None else [name.strip() for name in visible.split(",") if name.strip()]
    if visible is not None and number >= len(gpus):
        raise UserError(
            f"{VISIBLE_VARIABLE} = {visible!r} has no GPU for rank {number} of this machine: start at most one rank "
            "for each GPU"
        )
    environment[VISIBLE_VARIABLE] = str(number) if visible is None else gpus[number]


def require_gpus(num_ranks: int, num_gpus: int) -> None:
    """UserError if so many ranks on this machine would have to share GPUs."""
    if num_ranks > num_gpus:
        raise UserError(
            f"{num_ranks} ranks need a GPU each, and torch sees {num_gpus} here: start at most one rank for each GPU, "
            'or set [train] device = "cpu"'
        )
