"""How much of disk_bytes the spill may take, and what happens beyond."""

from types import SimpleNamespace

from embeddings.policy.ttl import ExpiryCutoffs
from embeddings.tiers.disk_cap import CHECK_CALLS, DiskCap


class Spilled(SimpleNamespace):
    """A spill of `size` bytes, of whose rows a tenth was last seen before 500."""

    def purge(self, cutoffs: dict[int, int]) -> None:
        self.purged = cutoffs

    def is_purging(self) -> bool:
        return False

    def last_seen_quantile(self, fraction: float) -> int:
        return 500

    def num_bytes(self) -> int:
        return int(self.size)


def cutoffs_after(spill_bytes: int, beside_bytes: int) -> dict[int, int]:
    cutoffs = ExpiryCutoffs()
    cap = DiskCap(Spilled(size=spill_bytes), cutoffs, 1000, other_bytes=lambda: beside_bytes)
    for _ in range(CHECK_CALLS):
        cap.advance([3])
    return cutoffs.as_dict()


def test_the_spill_may_not_take_what_the_log_takes() -> None:
    assert cutoffs_after(700, 0) == {}
    assert cutoffs_after(700, 300) == {}
    assert cutoffs_after(700, 301) == {3: 500}


def test_the_spill_may_always_take_half_of_the_disk() -> None:
    assert cutoffs_after(500, 10_000) == {}
    assert cutoffs_after(501, 10_000) == {3: 500}
