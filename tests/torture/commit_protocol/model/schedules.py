"""Random schedules of teams of ranks and those that replace them."""

from tests.torture.commit_protocol.model.world import World
from tests.torture.commit_protocol.schedules import Schedules

WEIGHTS = {name: action[0] for name, action in {**World.BY_TEAM, **World.BY_RANK, **World.BY_OTHERS}.items()}


FOCUS = [
    ("launch", "advance", "freeze", "power_loss", "flow", "flow_down", "cut"),  # one takes over from another
    (
        "upkeep",
        "merge",
        "finish",
        "plan",
        "retire",
        "roll",
        "roll_main",
        "flow",
        "flow_down",
        "cut",
        "train",
        "quiet",
    ),  # files come and go
    ("execute", "submit", "apply", "upkeep", "flow", "cut", "train"),  # orders
]


def weights(rng):
    """The weights of the actions of one stretch of a schedule; it may have a focus."""
    focus = rng.choice([(), (), *FOCUS])
    return {
        name: weight * rng.choice([0, 0.2, 1, 1, 1, 6]) * (6 if name in focus else 1)
        for name, weight in WEIGHTS.items()
    }


SCHEDULES = Schedules(World, weights, endings=1 << 20)
