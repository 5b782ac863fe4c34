"""A view's wide prediction, compiled: the same bits as springtide_client.wide.score.NUMPY_STEPS."""

from springtide.kernels.cpu.serving.wide_score import compiled_score
from springtide.kernels.cpu.serving.wide_slots import CompiledSlots, compiled_numbers
from springtide_client.wide.score import WideSteps


def compiled_steps() -> WideSteps:
    """Return steps for the views of one follower."""
    return WideSteps(compiled_numbers, CompiledSlots(), compiled_score)
