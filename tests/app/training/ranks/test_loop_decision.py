"""What several ranks do in a pass of the loop follows from the facts of all."""

from torch.distributed import HashStore

from springtide.app.training.ranks.loop_decision import NEVER, LoopDecision, RankVote
from springtide.app.training.ranks.ranks import Ranks
from tests.support.thread_ranks import on_ranks


def test_all_learn_if_one_has_a_batch_and_none_lacks_room():
    due, idle, full = RankVote(num_rows=8, is_due=True), RankVote(), RankVote(has_room=False)
    assert LoopDecision.of((due, idle)).must_learn
    assert not LoopDecision.of((idle, idle)).must_learn
    assert not LoopDecision.of((due, full)).must_learn
    assert not LoopDecision.of((due, RankVote(holds_up=True))).must_learn
    assert LoopDecision.of((due, RankVote(num_rows=3, is_due=True))).num_rows == 11


def test_one_stop_stops_all_and_the_end_is_when_all_are_there():
    assert LoopDecision.of((RankVote(), RankVote(is_stopping=True))).is_stopping
    assert not LoopDecision.of((RankVote(is_finished=True), RankVote())).is_finished
    assert LoopDecision.of((RankVote(is_finished=True), RankVote(is_finished=True))).is_finished


def test_the_clock_follows_the_slowest_rank_and_rank_0s_limit():
    assert (
        LoopDecision.of((RankVote(earliest_ms=50, limit_ms=100), RankVote(earliest_ms=70, limit_ms=1))).clock_ms == 50
    )
    assert LoopDecision.of((RankVote(earliest_ms=500, limit_ms=100), RankVote())).clock_ms == 100
    assert LoopDecision.of((RankVote(earliest_ms=NEVER, limit_ms=100), RankVote(limit_ms=100))).clock_ms is None


def test_what_goes_by_files_and_clocks_is_rank_0s_to_say():
    def vote(exchange) -> LoopDecision:
        ranks = Ranks(exchange, HashStore())
        is_other = ranks.rank == 1
        own = RankVote(num_rows=ranks.rank, is_report_due=is_other, has_command=is_other, is_corrupt=not is_other)
        agreed = LoopDecision.on(own, ranks)
        ranks.leave()
        return agreed

    first, second = on_ranks(2, vote)
    assert first == second
    assert (first.is_report_due, first.has_command, first.is_corrupt) == (False, False, True)
    assert first.num_rows == 1
