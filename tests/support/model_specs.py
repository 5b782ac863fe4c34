"""What a model of made-up features sees, for tests of models."""

from collections.abc import Mapping

from springtide.app.models.interface import ModelSpec
from springtide_client.schema import Schema

READ_HISTORIES = ("din", "sasrec", "hstu", "transformer")  # built-in models that need a target and its history
LEAST_LABELS = {"esmm": 2}  # of the built-in models that cannot do with one


def spec_of_sizes(
    categorical: int = 0,
    multi_value: int = 0,
    sequence: int = 0,
    dense: int = 0,
    labels: int = 1,
    *,
    dim: int = 4,
    dims: Mapping[int, int] | None = None,
    share: Mapping[str, str] | None = None,
) -> ModelSpec:
    """Return a spec with so many features of each kind, called c0, c1, ..., m0, ..., s0, ..., d0, ..., y0, ..."""

    def names(letter: str, num: int) -> tuple[str, ...]:
        return tuple(f"{letter}{i}" for i in range(num))

    schema = Schema(
        labels=names("y", labels),
        categorical=names("c", categorical),
        multi_value=names("m", multi_value),
        sequence=names("s", sequence),
        dense=names("d", dense),
        share=share or {},
    )
    return ModelSpec.of(schema, dim, dims)


def spec_for(name: str, *sizes: int) -> ModelSpec:
    """Return a spec of these sizes for a built-in model, with as many features and labels as it needs at least."""
    num_categorical, num_multi_value, num_sequence, num_dense, num_labels = sizes
    num_labels, share = max(num_labels, LEAST_LABELS.get(name, 1)), None
    if name in READ_HISTORIES:
        num_categorical, num_sequence, share = max(num_categorical, 1), max(num_sequence, 1), {"s0": "c0"}
    return spec_of_sizes(num_categorical, num_multi_value, num_sequence, num_dense, num_labels, share=share)
