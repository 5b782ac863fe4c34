"""Votes that the ranks exchange in every pass of the loop, and the decision that follows for all of them alike."""

from typing import NamedTuple

from springtide.app.training.ranks.ranks import Ranks

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
    """The facts of all ranks, rank 0's first; every rank has the same."""

    facts: tuple[RankVote, ...]

    @staticmethod
    def on(own: RankVote, ranks: Ranks) -> "LoopDecision":
        """Exchange the facts of all ranks: one all-gather."""
        if ranks.is_alone:
            return LoopDecision((own,))
        first = ranks.is_first
        shared = own if first else own._replace(is_report_due=False, has_command=False, is_corrupt=False)
        return LoopDecision(tuple(map(RankVote._make, ranks.all_gather_numbers([int(number) for number in shared]))))

    def without_report(self) -> "LoopDecision":
        """Return the same after rank 0 has reported the status."""
        return LoopDecision(tuple(facts._replace(is_report_due=False) for facts in self.facts))

    def with_stop(self) -> "LoopDecision":
        """Return the same after all have heard, in the middle of a pass, that one was asked to stop."""
        return LoopDecision(tuple(facts._replace(is_stopping=True) for facts in self.facts))

    @property
    def num_rows(self) -> int:
        """Samples that are ready, on all ranks; if there are none, no rank takes others along."""
        return sum(facts.num_rows for facts in self.facts)

    @property
    def must_learn(self) -> bool:
        """True if all ranks learn now, each what it has."""
        may_learn = all(facts.has_room and not facts.holds_up for facts in self.facts)
        return may_learn and any(facts.is_due for facts in self.facts)

    @property
    def is_stopping(self) -> bool:
        """True if one rank was asked to stop: all do."""
        return any(facts.is_stopping for facts in self.facts)

    @property
    def is_finished(self) -> bool:
        """True if every rank has learned everything up to the end that was asked for."""
        return all(facts.is_finished for facts in self.facts)

    @property
    def may_publish(self) -> bool:
        """True if a rank needs a version, or rank 0 says that it is time for one or for a command."""
        return any(facts.may_publish for facts in self.facts)

    @property
    def clock_ms(self) -> int | None:
        """The event time that all partitions have reached; None while every one is idle."""
        earliest_ms = min(facts.earliest_ms for facts in self.facts)
        return None if earliest_ms == NEVER else min(earliest_ms, self.facts[0].limit_ms)

    @property
    def is_report_due(self) -> bool:
        """True if rank 0 reports the status now."""
        return bool(self.facts[0].is_report_due)

    @property
    def has_command(self) -> bool:
        """True if a command waits."""
        return bool(self.facts[0].has_command)

    @property
    def is_corrupt(self) -> bool:
        """True if the log is reported as corrupt."""
        return bool(self.facts[0].is_corrupt)
