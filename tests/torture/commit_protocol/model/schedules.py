"""Random schedules: played, shrunk to a small one that still breaks, and told."""

import random
import time

from tests.torture.commit_protocol.model.records import Violation
from tests.torture.commit_protocol.model.world import BY_OTHERS, BY_TRAINER, World

WEIGHTS = {name: a[0] for name, a in {**BY_TRAINER, **BY_OTHERS}.items()}


def schedule(seed, length):
    """A random schedule; every stretch of it has its own taste, so that rare things come in bunches."""
    rng, actions = random.Random(seed), []
    while len(actions) < length:
        taste = [w * rng.choice([0, 0.2, 1, 1, 1, 4]) for w in WEIGHTS.values()]
        actions += [
            (name, rng.randrange(1 << 20)) for name in rng.choices([*WEIGHTS], taste, k=rng.choice([15, 50, 150]))
        ]
    return [*actions[:length], ("settle", 0)]


def play(seed, actions, off=(), trace=None):
    """None, or what was violated."""
    world = None
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


def shrink(seed, actions, off):
    """A smaller schedule that still breaks: leave out chunks, then make the numbers small."""
    size, changed = len(actions), True
    while size > 1 or changed:
        size, i, changed = max(1, size // 2), 0, False
        while i < len(actions):
            if play(seed, candidate := actions[:i] + actions[i + size :], off):
                actions, changed = candidate, True
            else:
                i += size
    for i, (name, r) in enumerate(actions):
        for small in range(min(8, r)):
            if play(seed, candidate := [*actions[:i], (name, small), *actions[i + 1 :]], off):
                actions = candidate
                break
    return actions


def tell(seed, actions, off):
    trace = []
    broken = play(seed, actions, off, trace)
    return "\n".join([*trace, f"*** {broken}"])


def search(off, seconds, lengths, first_seed=0, keep=1):
    """Play until `keep` violations or the time is up: (schedules, steps, [(seed, shrunk schedule)])."""
    end, seed, steps, found = time.process_time() + seconds, first_seed, 0, []
    while len(found) < keep and time.process_time() < end:
        actions = schedule(seed, lengths[seed % len(lengths)])
        if play(seed, actions, off):
            found.append((seed, shrink(seed, actions, off)))
        steps += len(actions)
        seed += 1
    return seed - first_seed, steps, found
