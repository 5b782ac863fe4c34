"""Inputs of the right shapes, to try a model and to trace it."""

import torch

from springtide.app.models.interface import ModelSpec
from springtide_client.model.inputs import ModelInputs

# samples and longest sequence; tracing would take 0 and 1 for constants
NUM_SAMPLES, LONGEST = 2, 3


def example_inputs(spec: ModelSpec) -> ModelInputs:
    """Return zeros of every kind of input; absent kinds have an axis of size 0."""
    return ModelInputs(
        categorical=torch.zeros(NUM_SAMPLES, spec.num_categorical, spec.dim),
        pooled=torch.zeros(NUM_SAMPLES, spec.num_pooled, spec.dim),
        sequence=torch.zeros(NUM_SAMPLES, spec.num_sequence, LONGEST, spec.dim),
        sequence_length=torch.zeros(NUM_SAMPLES, spec.num_sequence, dtype=torch.int64),
        dense=torch.zeros(NUM_SAMPLES, spec.num_dense),
    )
