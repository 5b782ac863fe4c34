"""The states of a follower, and the transitions between them."""

from enum import Enum, auto


class State(Enum):
    """The version that a follower serves, and its way to a newer one."""

    EMPTY = auto()  # nothing is served; a view of the newest base catches up
    LIVE = auto()  # the served view follows the log, record by record
    REBUILDING = auto()  # the same, and a view of a newer base catches up: it needs less memory
    BROKEN = auto()  # the log does not continue the served view; a view of the newest base has to pass it

    @property
    def is_followed(self) -> bool:
        """True when the served view takes the log's next record."""
        return self in (State.LIVE, State.REBUILDING)


class Event(Enum):
    """An event that changes the state of a follower."""

    BASE_OPENED = auto()  # a view of a base starts to catch up
    CAUGHT_UP = auto()  # that view is served from now on
    CHAIN_BROKE = auto()  # the log does not continue the served view
    REBUILD_FAILED = auto()  # the log does not continue the view that catches up
    ENDED_AT_SERVED = auto()  # the same, and that view had reached the served version: nothing lies beyond it


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.EMPTY, Event.BASE_OPENED): State.EMPTY,
    (State.EMPTY, Event.CAUGHT_UP): State.LIVE,
    (State.LIVE, Event.BASE_OPENED): State.REBUILDING,
    (State.LIVE, Event.CHAIN_BROKE): State.BROKEN,
    (State.REBUILDING, Event.CAUGHT_UP): State.LIVE,
    (State.REBUILDING, Event.CHAIN_BROKE): State.BROKEN,
    (State.REBUILDING, Event.REBUILD_FAILED): State.LIVE,
    (State.REBUILDING, Event.ENDED_AT_SERVED): State.LIVE,
    (State.BROKEN, Event.BASE_OPENED): State.BROKEN,
    (State.BROKEN, Event.CAUGHT_UP): State.LIVE,
    (State.BROKEN, Event.REBUILD_FAILED): State.BROKEN,
    (State.BROKEN, Event.ENDED_AT_SERVED): State.LIVE,
}
