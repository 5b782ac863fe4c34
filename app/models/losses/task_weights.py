"""Weights of labels by learned uncertainty (Kendall, Gal and Cipolla 2018, "Multi-task learning using uncertainty").

Each label has a learned log variance s; its loss counts exp(-s), and s / 2 for each sample keeps s from growing.
"""

# L labels
import torch
from torch import Tensor, nn

NAME = "task_weights"  # of the module in the net: its parameter is `task_weights.log_variances_L`


class TaskWeights(nn.Module):
    """Serves training alone: the exported program does not use it."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.num_labels = num_labels
        self.log_variances_L = nn.Parameter(torch.zeros(num_labels))

    def factors(self) -> Tensor:
        """Return what each label's loss counts, (L)."""
        return torch.exp(-self.log_variances_L)


def add_task_weights(model: nn.Module, num_labels: int) -> None:
    """Add them to the net, to be learned, published and resumed with it; ValueError if the name is taken."""
    if hasattr(model, NAME):
        raise ValueError(
            f'the net has an attribute {NAME!r} of its own: rename it, or set [train] task_weights = "fixed"'
        )
    model.add_module(NAME, TaskWeights(num_labels))


def task_weights_of(model: nn.Module) -> TaskWeights | None:
    """Return the net's learned weights of labels, if it has them."""
    weights = getattr(model, NAME, None)
    return weights if isinstance(weights, TaskWeights) else None
