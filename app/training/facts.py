"""Collects this rank's vote in a pass of the loop."""

from springtide.app.training.publisher import Publisher
from springtide.app.training.ranks.loop_decision import NEVER, RankVote
from springtide.app.training.session import TrainingSession


def facts_here(
    session: TrainingSession,
    publisher: Publisher,
    *,
    has_room: bool,
    is_stopping: bool,
    is_held: bool,
    is_report_due: bool,
    is_corrupt: bool,
) -> RankVote:
    """Return the facts; a rank that is alone asks only for those that it needs.

    `has_room`: for more to learn. `is_held`: the gate holds the model back, and only a command helps.
    """
    batches, stream = session.batches, session.state.stream
    ready = batches.ready
    facts = RankVote(
        num_rows=0 if ready is None else len(ready),
        is_due=ready is not None,
        has_room=has_room,
        has_command=is_held and session.commands.has_pending,
        is_corrupt=is_corrupt,
    )
    if session.ranks.is_alone:
        return facts
    return facts._replace(
        holds_up=batches.holds_others_up,
        is_stopping=is_stopping,
        is_finished=batches.finished,
        may_publish=publisher.may_publish(session),
        earliest_ms=NEVER if stream.earliest_ms is None else stream.earliest_ms,
        limit_ms=session.max_event_ms(),
        is_report_due=is_report_due,
    )
