"""Unbroken runs of versions: retention deletes what lies between a kept base and newer ones, so a log may have gaps."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from springtide_client.format.records import RecordHeader, Tip


class UnbrokenRuns:
    """Which versions of an index follow one another without a gap, by the checksums that link them.

    A version can be rebuilt if a base at or before it is in its run.
    """

    def __init__(self, headers: Mapping[int, RecordHeader], bases: Mapping[int, Tip | None]) -> None:
        """`headers`: of the records by number. `bases`: the tip of each base by number, None if it cannot be read."""
        self._run: dict[int, int] = {}
        self._bases: list[int] = sorted(number for number, tip in bases.items() if tip is not None)
        run, tip = 0, None
        for number in sorted({*headers, *bases}):
            header = headers.get(number)
            if header is None:
                run, tip = run + 1, bases[number]
            else:
                run += tip is None or header.parent != tip.checksum
                tip = header.tip
            self._run[number] = run

    def are_connected(self, older: int, newer: int) -> bool:
        """Return True if every version between two versions of the index is in it."""
        run = self._run.get(older)
        return run is not None and run == self._run.get(newer)

    def base_of(self, number: int) -> int | None:
        """Return the newest base from which a version can be rebuilt; None if there is none."""
        return next(iter(self.bases_of(number)), None)

    def bases_of(self, number: int) -> Sequence[int]:
        """Return the bases from which a version can be rebuilt, the newest first."""
        below = self._bases[: bisect_right(self._bases, number)]
        return [base for base in reversed(below) if self.are_connected(base, number)]

    def starts(self) -> list[int]:
        """Return the oldest base of each run that has one, oldest first."""
        first: dict[int, int] = {}
        for base in self._bases:
            first.setdefault(self._run[base], base)
        return list(first.values())

    def end_of(self, number: int) -> int:
        """Return the newest version of the run that a version is in."""
        run = self._run[number]
        return max(other for other, its in self._run.items() if its == run)
