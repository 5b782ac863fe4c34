"""What `springtide check` says about several ranks that learn one model."""

from typing import Literal

from app.config.load import Config


def check_cluster(config: Config) -> tuple[Literal["ok", "note"], str]:
    """Say how several ranks would exchange what they learn, or what keeps them from it."""
    cluster = config.cluster
    if config.train.device == "cuda":
        return "note", 'cluster: only one rank can learn on a GPU so far; several learn with [train] device = "cpu"'
    formats = {"rows": cluster.rows, "gradients": cluster.gradients, "those of the net": cluster.dense_gradients}
    text = ", ".join(f"{name} as {kind}" for name, kind in formats.items())
    return (
        "ok",
        f"cluster: several ranks (`springtide train --ranks R`) would exchange {text}; one that is silent for "
        f"{cluster.timeout_seconds:g} s counts as dead",
    )
