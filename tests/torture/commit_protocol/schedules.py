"""Random schedules of a model: played, shrunk to a small one that still breaks, and written out."""

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Violation(Exception):
    """A promise is broken."""


class Gone(Violation):
    """Files that a process needs are missing: a replaced one just ends, for anyone else a promise is broken."""


class Broken(NamedTuple):
    """A schedule that breaks a promise, and after how many seconds it was found."""

    seed: int
    actions: list
    why: str
    seconds: float


class Schedules:
    """Schedules of one model; a schedule is a list of (action, random number) and a function of its seed."""

    def __init__(
        self, world: Callable[..., Any], weights: Callable[[random.Random], dict[str, float]], *, endings: int = 1
    ) -> None:
        """`world`: called with seed, rules off and trace, it has `act(name, number)`. `weights`: of the actions of one
        stretch, which has a taste of its own, so that rare things come in bunches. `endings`: of the last action."""
        self._world, self._weights, self._endings = world, weights, endings

    def schedule(self, seed, length):
        rng, actions = random.Random(seed), []
        while len(actions) < length:
            weights = self._weights(rng)
            names = rng.choices([*weights], [*weights.values()], k=rng.choice([15, 50, 150]))
            actions += [(name, rng.randrange(1 << 20)) for name in names]
        return [*actions[:length], ("settle", rng.randrange(self._endings))]

    def play(self, seed, actions, off=(), trace=None):
        """None, or what was violated."""
        try:
            world = self._world(seed, off, trace)
            for name, number in actions:
                world.act(name, number)
        except Violation as violation:
            return str(violation)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            if not off:
                raise
            return None  # without a rule the model's own footing may go: no promise is broken by that
        return None

    def shrink(self, seed, actions, off, seconds=20):
        """A smaller schedule that still breaks: leave out chunks, then make the numbers small."""
        end = time.process_time() + seconds
        size, changed = len(actions), True
        while (size > 1 or changed) and time.process_time() < end:
            size, i, changed = max(1, size // 2), 0, False
            while i < len(actions):
                if self.play(seed, candidate := actions[:i] + actions[i + size :], off):
                    actions, changed = candidate, True
                else:
                    i += size
        for i, (name, number) in enumerate(actions):
            for small in range(min(8, number)):
                if time.process_time() < end and self.play(
                    seed, candidate := [*actions[:i], (name, small), *actions[i + 1 :]], off
                ):
                    actions = candidate
                    break
        return actions

    def story(self, seed, actions, off):
        """What happens in a schedule, line by line."""
        trace = []
        broken = self.play(seed, actions, off, trace)
        return "\n".join([*trace, f"*** {broken}"])

    def shrunk_story(self, broken: Broken, off):
        return self.story(broken.seed, self.shrink(broken.seed, broken.actions, off), off)

    def search(self, off, seconds, lengths, first_seed=0, keep=1):
        """Play until `keep` violations or the time is up: how many schedules, how many steps, what broke."""
        begin, seed, steps, found = time.process_time(), first_seed, 0, []
        while len(found) < keep and (spent := time.process_time() - begin) < seconds:
            actions = self.schedule(seed, lengths[seed % len(lengths)])
            if why := self.play(seed, actions, off):
                found.append(Broken(seed, actions, why, spent))
            steps += len(actions)
            seed += 1
        return seed - first_seed, steps, found
