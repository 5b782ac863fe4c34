"""The keys of `[cluster]`: how the ranks of a trainer talk to each other. No torch."""

from typing import Annotated, Literal

from msgspec import Meta

from springtide_client.system.settings import FINITE, Settings


class ClusterConfig(Settings, frozen=True, kw_only=True):
    """How the ranks of a trainer that torchrun started exchange rows, gradients and decisions."""

    timeout_seconds: Annotated[
        float,
        Meta(
            ge=5,
            extra=FINITE,
            description="Within so long after a rank has frozen or was cut off, the others end, and torchrun starts "
            "all of them again. One that is silent for three quarters of it counts as dead.",
        ),
    ] = 30.0
    rows: Annotated[
        Literal["float32", "bfloat16", "int8"],
        Meta(description="How rows travel to the rank that computes; int8 has a scale for each row."),
    ] = "float32"
    gradients: Annotated[
        Literal["float32", "bfloat16", "int8"],
        Meta(description="How gradients travel to the rank that owns the row; int8 is rounded stochastically."),
    ] = "float32"
    dense_gradients: Annotated[
        Literal["float32", "bfloat16"],
        Meta(description="How gradients of the dense net are summed over the ranks."),
    ] = "float32"
