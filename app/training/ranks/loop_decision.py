"""Votes that the ranks exchange in every pass of the loop, and the decision that follows for all of them alike."""

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
    """The votes of all ranks, rank 0's first; every rank has the same."""

    votes: tuple[RankVote, ...]

    @staticmethod
    def on(own: RankVote, ranks: Ranks) -> "LoopDecision":
        """Exchange the votes of all ranks: one all-gather."""
        first = ranks.is_first
        shared = own if first else own._replace(is_report_due=False, has_command=False, is_corrupt=False)
        return LoopDecision(tuple(map(RankVote._make, ranks.all_gather_numbers([int(number) for number in shared]))))

    def without_report(self) -> "LoopDecision":
        """Return the same after rank 0 has reported the status."""
        return LoopDecision(tuple(vote._replace(is_report_due=False) for vote in self.votes))

    def without_finish(self) -> "LoopDecision":
        """Return the same after a rollback: what was learned is to be learned again."""
        return LoopDecision(tuple(vote._replace(is_finished=False) for vote in self.votes))

    def with_stop(self) -> "LoopDecision":
        """Return the same after all have heard, in the middle of a pass, that one was asked to stop."""
        return LoopDecision(tuple(vote._replace(is_stopping=True) for vote in self.votes))

    @property
    def num_rows(self) -> int:
        """Samples that are ready, on all ranks; if there are none, no rank takes others along."""
        return sum(vote.num_rows for vote in self.votes)

    @property
    def must_learn(self) -> bool:
        """True if all ranks learn now, each what it has."""
        may_learn = all(vote.has_room and not vote.holds_up for vote in self.votes)
        return may_learn and any(vote.is_due for vote in self.votes)

    def poll_seconds(self, seconds: float) -> float:
        """Return how long to wait for samples: of several ranks none keeps the others waiting that have some."""
        if len(self.votes) == 1:
            return seconds
        return 0.0 if self.must_learn else min(seconds, POLL_SECONDS)

    @property
    def is_stopping(self) -> bool:
        """True if one rank was asked to stop: all do."""
        return any(vote.is_stopping for vote in self.votes)

    @property
    def is_finished(self) -> bool:
        """True if every rank has learned everything up to the end that was asked for."""
        return all(vote.is_finished for vote in self.votes)

    @property
    def may_publish(self) -> bool:
        """True if a rank needs a version, or rank 0 says that it is time for one or for a command.

        A single rank checks only after it has learned: no other rank waits for it.
        """
        return len(self.votes) == 1 or any(vote.may_publish for vote in self.votes)

    @property
    def clock_ms(self) -> int | None:
        """The event time that all partitions have reached; None while every one is idle."""
        earliest_ms = min(vote.earliest_ms for vote in self.votes)
        return None if earliest_ms == NEVER else min(earliest_ms, self.votes[0].limit_ms)

    @property
    def is_report_due(self) -> bool:
        """True if rank 0 reports the status now."""
        return bool(self.votes[0].is_report_due)

    @property
    def has_command(self) -> bool:
        """True if a command waits."""
        return bool(self.votes[0].has_command)

    @property
    def is_corrupt(self) -> bool:
        """True if the log is reported as corrupt."""
        return bool(self.votes[0].is_corrupt)
