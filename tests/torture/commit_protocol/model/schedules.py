"""Random schedules of one trainer and those that replace it."""

from tests.torture.commit_protocol.model.world import BY_OTHERS, BY_TRAINER, World
from tests.torture.commit_protocol.schedules import Schedules

WEIGHTS = {name: action[0] for name, action in {**BY_TRAINER, **BY_OTHERS}.items()}


def weights(rng):
    """The weights of the actions of one stretch of a schedule."""
    return {name: weight * rng.choice([0, 0.2, 1, 1, 1, 4]) for name, weight in WEIGHTS.items()}


SCHEDULES = Schedules(World, weights)
