"""Inputs of the right shape for trying a model out and for tracing it."""

import torch
from springtide_client.model.inputs import ModelInputs

from app.models.interface import ModelSpec

# N samples, T the longest sequence; neither 0 nor 1, which tracing would take for constants
NUM_SAMPLES, LONGEST = 2, 3


def example_inputs(spec: ModelSpec) -> ModelInputs:
    """Zeros in every kind; absent kinds have an axis of size 0."""
    return ModelInputs(
        categorical=torch.zeros(NUM_SAMPLES, spec.num_categorical, spec.dim),
        pooled=torch.zeros(NUM_SAMPLES, spec.num_pooled, spec.dim),
        sequence=torch.zeros(NUM_SAMPLES, spec.num_sequence, LONGEST, spec.dim),
        sequence_length=torch.zeros(NUM_SAMPLES, spec.num_sequence, dtype=torch.int64),
        dense=torch.zeros(NUM_SAMPLES, spec.num_dense),
    )
