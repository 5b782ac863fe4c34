"""What the spill may take of disk_bytes, and what happens beyond."""

from types import SimpleNamespace

from embeddings.policy.ttl import ExpiryCutoffs
from embeddings.tiers.disk_cap import CHECK_CALLS, DiskCap


class Spilled(SimpleNamespace):
    """A spill of so many bytes; its coldest tenth was last seen before 500."""

    def purge(self, horizons: dict[int, int]) -> None:
        self.purged = horizons

    def is_purging(self) -> bool:
        return False

    def last_seen_quantile(self, fraction: float) -> int:
        return 500

    def num_bytes(self) -> int:
        return int(self.size)


def horizons_after(spill_bytes: int, beside_bytes: int) -> dict[int, int]:
    horizons = ExpiryCutoffs()
    cap = DiskCap(Spilled(size=spill_bytes), horizons, 1000, other_bytes=lambda: beside_bytes)
    for _ in range(CHECK_CALLS):
        cap.advance([3])
    return horizons.as_dict()


def test_what_the_log_takes_of_the_disk_the_spill_does_without() -> None:
    assert horizons_after(700, 0) == {}
    assert horizons_after(700, 300) == {}
    assert horizons_after(700, 301) == {3: 500}


def test_half_of_the_disk_is_the_spills_however_large_the_log() -> None:
    assert horizons_after(500, 10_000) == {}
    assert horizons_after(501, 10_000) == {3: 500}
