"""How fast R ranks learn together, from constants that were measured on one and two of them.

A step is synchronous: it takes as long as its slowest rank, then what travels takes as long as the fullest link.
Nothing overlaps, as it is today. Not simulated: faults, hosts with several ranks, links that many pairs share.
"""

# I ids there are, R ranks, B samples of a batch of one rank
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

KEY_BYTES = 12  # an id, and how often it occurs
ALL_TO_ALLS = 4  # a step: counts of keys, keys, rows, gradients
SMALL_COLLECTIVES = 3  # a step: two agreements inside it, one of the loop
DRAWS = 200  # steps that are simulated


@dataclass(frozen=True)
class Rank:
    """What one rank's process takes."""

    step_seconds: float  # of each step, whatever its batch
    sample_seconds: float
    key_seconds: float  # for each unique id that is sent or asked for: sorting, encoding, copying
    spread: float  # the standard deviation of a step's time, as a share of its mean

    def faster(self, factor: float) -> "Rank":
        """Return a rank that computes so many times as fast."""
        return Rank(self.step_seconds / factor, self.sample_seconds / factor, self.key_seconds / factor, self.spread)


@dataclass(frozen=True)
class Link:
    """What lies between two ranks."""

    bytes_per_second: float  # out of a rank
    message_seconds: float  # of a message without content
    post_seconds: float = 0.0  # of one more message at the same time, to another rank


@dataclass(frozen=True)
class Workload:
    """What is learned. shares_I: how often each id occurs, as a share of all; they sum to 1."""

    shares_I: Float64Array
    ids_a_sample: int
    row_bytes: int  # of a row or its gradient, as they travel
    logged_row_bytes: int  # of a row in a version
    dense_bytes: int  # of the gradients of the net

    def chances(self, num_samples: float) -> Float64Array:
        """Return for each id how likely it is among so many samples, (I)."""
        chances_I: Float64Array = -np.expm1(num_samples * self.ids_a_sample * np.log1p(-self.shares_I))
        return chances_I

    def num_unique(self, num_samples: float) -> float:
        """Return how many different ids so many samples have."""
        return float(self.chances(num_samples).sum())


@dataclass(frozen=True)
class Forecast:
    """What R ranks do; times in seconds of one step."""

    num_ranks: int
    samples_per_second: float
    compute: float  # of the mean rank, with sorting and encoding its keys
    waiting: float  # for the slowest rank and for the owner with the most keys
    wire: float  # bytes of keys, rows and gradients
    dense: float  # the gradients of the net, and their messages
    messages: float  # all other messages
    bytes_a_sample: float  # out of a rank
    log_bytes_per_second: float  # of all ranks together, and to each follower

    @property
    def step_seconds(self) -> float:
        return self.compute + self.waiting + self.wire + self.dense + self.messages

    @property
    def largest_loss(self) -> str:
        """What takes the most of a step beside computing."""
        parts = {name: getattr(self, name) for name in ("waiting", "wire", "dense", "messages")}
        return max(parts, key=lambda name: parts[name]) if self.num_ranks > 1 else "-"


def forecast(
    num_ranks: int,
    batch: int,
    rank: Rank,
    link: Link,
    workload: Workload,
    *,
    publish_seconds: float = 1.0,
    seed: int = 0,
) -> Forecast:
    """Return what so many ranks do with batches of `batch` samples each."""
    random, others = np.random.default_rng(seed), 1.0 - 1.0 / num_ranks
    chances_I = workload.chances(batch)
    num_keys = float(chances_I.sum())
    owners_I = random.integers(0, num_ranks, len(chances_I))
    # an id that is in every rank's batch is asked for by every rank: its owner has R keys of it in a step
    asked_R = np.bincount(owners_I, chances_I, minlength=num_ranks) * num_ranks
    exchanged = num_ranks > 1
    mean = rank.step_seconds + batch * rank.sample_seconds + 2 * num_keys * rank.key_seconds * exchanged
    slowest = mean * (1 + rank.spread * random.standard_normal((DRAWS, num_ranks)).max(axis=1).mean())
    busiest = float(asked_R.max() - num_keys) * rank.key_seconds * exchanged
    num_bytes = others * (num_keys * (KEY_BYTES + workload.row_bytes) + num_keys * workload.row_bytes)
    fullest = others * (asked_R.max() * (KEY_BYTES + 2 * workload.row_bytes)) / link.bytes_per_second
    rounds = float(np.ceil(np.log2(num_ranks)))
    all_to_all = link.message_seconds + (num_ranks - 2) * link.post_seconds
    messages = ALL_TO_ALLS * all_to_all + SMALL_COLLECTIVES * rounds * link.message_seconds
    dense = 2 * others * workload.dense_bytes / link.bytes_per_second + 2 * rounds * link.message_seconds
    parts = {
        "compute": mean,
        "waiting": max(0.0, slowest - mean) * exchanged + busiest,
        "wire": fullest if exchanged else 0.0,
        "dense": dense if exchanged else 0.0,
        "messages": messages if exchanged else 0.0,
    }
    rate = num_ranks * batch / sum(parts.values())
    logged = workload.num_unique(rate * publish_seconds) * workload.logged_row_bytes / publish_seconds
    return Forecast(
        num_ranks,
        rate,
        **parts,
        bytes_a_sample=num_bytes / batch,
        log_bytes_per_second=logged,
    )
