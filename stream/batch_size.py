"""How many samples a full batch has: few while little was learned, more as the learner gains experience."""

from dataclasses import dataclass

# A batch is scored before it is learned: nothing in it profits from the samples beside it. A 128th of what was learned
# before is little to miss, and from the first sample to batches of 4096 it takes 1,152 steps, some seconds. (A learner
# that walks through a batch sample by sample misses less, and may have larger ones.)
GROWTH = 128


@dataclass(frozen=True)
class BatchSize:
    """The size of full batches as a function of the samples learned before, and of nothing else.

    So the batches of a stream are the same after a restart. Between `min_batch_size` and `batch_size` sizes are powers
    of two, so that few different ones occur.
    """

    batch_size: int  # the most
    min_batch_size: int = 0  # the fewest; 0: always `batch_size`
    growth: int = GROWTH  # a batch has at most this part of the samples learned before it

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.min_batch_size < 0:
            raise ValueError(f"min_batch_size must be at least 0, not {self.min_batch_size}")
        if self.growth < 1:
            raise ValueError(f"growth must be at least 1, not {self.growth}")

    def after(self, num_learned: int) -> int:
        """Return the size of a full batch after so many samples."""
        if self.min_batch_size == 0:
            return self.batch_size
        share = num_learned // self.growth
        power_of_two = 1 << share.bit_length() >> 1
        return min(self.batch_size, max(self.min_batch_size, power_of_two))

    @property
    def eager(self) -> int:
        """The samples that are worth a step of their own once the stream is caught up."""
        return min(self.min_batch_size, self.batch_size) or self.batch_size
