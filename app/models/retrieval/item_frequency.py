"""How often each item comes in the stream, estimated in bounded memory (Yi et al. 2019, algorithm 2).

Two arrays, indexed by a hash of the id: when an item was seen last, and a moving average of the gap between two times.
Time is counted in samples, not in steps, so that estimates do not depend on the size of batches.
"""

# N samples, M hash functions, H buckets
from typing import NamedTuple

import torch
from torch import Tensor, nn

# odd multipliers of multiplicative hashing (Knuth): golden ratio, and the constants of SplitMix64
MULTIPLIERS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)


class Frequencies(NamedTuple):
    """The arrays after a batch."""

    last_MH: Tensor
    gap_MH: Tensor
    num_samples_1: Tensor


class ItemFrequency(nn.Module):
    """`rate` is the weight of the newest gap in the average; of several hash functions the rarest estimate counts."""

    last_MH: Tensor  # int64, the number of samples when an item of the bucket came last; 0: never
    gap_MH: Tensor
    num_samples_1: Tensor

    def __init__(self, *, num_buckets: int, num_hashes: int = 2, rate: float = 0.05) -> None:
        super().__init__()
        if num_buckets < 2 or num_buckets & (num_buckets - 1):
            raise ValueError(f"buckets must be a power of two, not {num_buckets}")
        self.rate = rate
        self.register_buffer("last_MH", torch.zeros(num_hashes, num_buckets, dtype=torch.int64))
        self.register_buffer("gap_MH", torch.full((num_hashes, num_buckets), float(num_buckets)))
        self.register_buffer("num_samples_1", torch.zeros(1, dtype=torch.int64))

    def buckets(self, ids_N: Tensor) -> Tensor:
        """Return the bucket of each id by each hash function, int64 (M, N)."""
        num_hashes, num_buckets = self.last_MH.shape
        # the shift is arithmetic: the mask takes the same bits of negative products
        shift = 64 - num_buckets.bit_length()
        return torch.stack([(ids_N * MULTIPLIERS[m]) >> shift & (num_buckets - 1) for m in range(num_hashes)])

    @torch.no_grad()
    def after(self, ids_N: Tensor) -> Frequencies:
        """Return the arrays after a batch, whose order does not count. Nothing is written."""
        buckets_MN = self.buckets(ids_N)
        num_samples_1 = self.num_samples_1 + ids_N.shape[0]
        counts_MH = torch.zeros_like(self.last_MH).scatter_add_(1, buckets_MN, torch.ones_like(buckets_MN))
        seen_MH = counts_MH > 0
        gaps_MH = (num_samples_1 - self.last_MH).float() / counts_MH.clamp(min=1)
        # a bucket's first gap is the best guess there is; c gaps of equal length are c steps of the average
        kept_MH = torch.where(self.last_MH == 0, 0.0, (1 - self.rate) ** counts_MH.float())
        average_MH = kept_MH * self.gap_MH + (1 - kept_MH) * gaps_MH
        return Frequencies(
            torch.where(seen_MH, num_samples_1, self.last_MH),
            torch.where(seen_MH, average_MH, self.gap_MH),
            num_samples_1,
        )

    def log_probabilities(self, ids_N: Tensor, frequencies: Frequencies) -> Tensor:
        """Return the logarithm of the share of samples that have each item, float32 (N)."""
        gaps_MN = frequencies.gap_MH.gather(1, self.buckets(ids_N))
        return -gaps_MN.max(dim=0).values.clamp(min=1).log()

    @torch.no_grad()
    def observe(self, frequencies: Frequencies) -> None:
        """Write the arrays after a batch."""
        for name, array in frequencies._asdict().items():
            getattr(self, name).copy_(array)
