"""Votes that the ranks exchange in every pass of the loop, and the decision that follows for all of them alike."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from springtide.app.training.ranks.ranks import Ranks

POLL_SECONDS = 0.01  # of several ranks: all wait for the one that waits longest
NEVER = 2**62  # an event time: this rank holds back nobody


class RankVote(NamedTuple):
    """The state of one rank. Whatever goes by the clock or by files, rank 0 says for all."""

    num_rows: int = 0  # of the batch that it has ready
    is_due: bool = False  # it has a batch ready, perhaps without samples
    has_room: bool = True  # its log takes more
    holds_up: bool = False  # its next batch is not there yet, and the others must not learn without it
    is_stopping: bool = False
    is_finished: bool = False  # it has learned everything up to the end that was asked for
    may_publish: bool = False  # it may be time for a version or a command
    earliest_ms: int = NEVER  # the least watermark of its partitions
    limit_ms: int = NEVER  # how far the event clock may go. Rank 0's counts
    is_report_due: bool = False  # rank 0's counts
    has_command: bool = False  # rank 0's counts
    is_corrupt: bool = False  # a reader has found the log corrupt. Rank 0's counts


class LoopDecision(NamedTuple):
    """The decision that follows from the votes of all ranks; every rank has the same."""

    num_rows: int = 0  # samples that are ready, on all ranks; if there are none, no rank takes others along
    must_learn: bool = False  # all ranks learn now, each what it has
    max_poll_seconds: float = math.inf  # of several ranks none keeps the others waiting that have samples
    is_stopping: bool = False  # one rank was asked to stop: all do
    is_finished: bool = False  # every rank has learned everything up to the end that was asked for
    may_publish: bool = True  # see `of`
    clock_ms: int | None = None  # the event time that all partitions have reached; None while every one is idle
    is_report_due: bool = False  # rank 0 reports the status now
    has_command: bool = False  # a command waits
    is_corrupt: bool = False  # the log is reported as corrupt

    @staticmethod
    def on(own: RankVote, ranks: Ranks) -> "LoopDecision":
        """Exchange the votes of all ranks: one all-gather."""
        shared = own if ranks.is_first else own._replace(is_report_due=False, has_command=False, is_corrupt=False)
        return LoopDecision.of(ranks.all_gather_numbers(list(map(int, shared))))

    @staticmethod
    def of(votes: Sequence[Sequence[int]]) -> "LoopDecision":
        """Return what follows from the votes, rank 0's first.

        Publishing may be due if a rank needs a version, or rank 0 says that it is time for one or for a command. A
        single rank checks only after it has learned: no other rank waits for it.
        """
        first, is_alone = RankVote._make(votes[0]), len(votes) == 1
        of_all = dict(zip(RankVote._fields, zip(*votes, strict=True), strict=True))
        must_learn = all(of_all["has_room"]) and not any(of_all["holds_up"]) and any(of_all["is_due"])
        earliest_ms = min(of_all["earliest_ms"])
        return LoopDecision(
            num_rows=sum(of_all["num_rows"]),
            must_learn=must_learn,
            max_poll_seconds=math.inf if is_alone else 0.0 if must_learn else POLL_SECONDS,
            is_stopping=any(of_all["is_stopping"]),
            is_finished=all(of_all["is_finished"]),
            may_publish=is_alone or any(of_all["may_publish"]),
            clock_ms=None if earliest_ms == NEVER else min(earliest_ms, first.limit_ms),
            is_report_due=bool(first.is_report_due),
            has_command=bool(first.has_command),
            is_corrupt=bool(first.is_corrupt),
        )
