"""Random schedules: played, shrunk to a small one that still breaks, and told."""

import random
import time

from tests.torture.commit_protocol.team_model.records import Violation
from tests.torture.commit_protocol.team_model.world import World

WEIGHTS = {name: a[0] for name, a in {**World.BY_TEAM, **World.BY_RANK, **World.BY_OTHERS}.items()}


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


def schedule(seed, length):
    """A random schedule; every stretch of it has its own taste, so that rare things come in bunches."""
    rng, actions = random.Random(seed), []
    while len(actions) < length:
        focus = rng.choice([(), (), *FOCUS])
        taste = [w * rng.choice([0, 0.2, 1, 1, 1, 6]) * (6 if name in focus else 1) for name, w in WEIGHTS.items()]
        actions += [
            (name, rng.randrange(1 << 20)) for name in rng.choices([*WEIGHTS], taste, k=rng.choice([15, 50, 150]))
        ]
    return [*actions[:length], ("settle", rng.randrange(1 << 20))]


def play(seed, actions, off=(), trace=None):
    """None, or what was violated."""
    try:
        world = World(seed, off, trace)
        for name, r in actions:
            world.act(name, r)
    except Violation as violation:
        return str(violation)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        if not off:
            raise
        return None  # without a rule the model's own footing may go: not a tale to tell
    return None


def shrink(seed, actions, off, seconds=20):
    """A smaller schedule that still breaks: leave out chunks, then make the numbers small."""
    end = time.process_time() + seconds
    size, changed = len(actions), True
    while (size > 1 or changed) and time.process_time() < end:
        size, i, changed = max(1, size // 2), 0, False
        while i < len(actions):
            if play(seed, candidate := actions[:i] + actions[i + size :], off):
                actions, changed = candidate, True
            else:
                i += size
    for i, (name, r) in enumerate(actions):
        for small in range(min(8, r)):
            if time.process_time() < end and play(
                seed, candidate := [*actions[:i], (name, small), *actions[i + 1 :]], off
            ):
                actions = candidate
                break
    return actions


def tell(seed, actions, off):
    trace = []
    broken = play(seed, actions, off, trace)
    return "\n".join([*trace, f"*** {broken}"])


def search(off, seconds, lengths, first_seed=0):
    """Play until something breaks or the time is up: (schedules, steps, the one that broke or None, why, seconds)."""
    begin, seed, steps = time.process_time(), first_seed, 0
    while (spent := time.process_time() - begin) < seconds:
        actions = schedule(seed, lengths[seed % len(lengths)])
        steps += len(actions)
        seed += 1
        if broken := play(seed - 1, actions, off):
            return seed - first_seed, steps, actions, broken, time.process_time() - begin
    return seed - first_seed, steps, None, None, spent
