"""The transitions of a follower: nothing ends it, and only its first base ends the empty state."""

import pytest

from springtide_client.follow.states import TRANSITIONS, Event, State


@pytest.mark.parametrize("state", State)
def test_every_state_leads_to_live(state: State) -> None:
    reached = {state}
    for _ in State:
        reached |= {new for (old, _), new in TRANSITIONS.items() if old in reached}
    assert State.LIVE in reached


def test_a_follower_that_serves_a_view_never_becomes_empty() -> None:
    assert {old for (old, _), new in TRANSITIONS.items() if new is State.EMPTY} == {State.EMPTY}


def test_only_a_followed_view_can_break() -> None:
    assert {old for old, event in TRANSITIONS if event is Event.CHAIN_BROKE} == {s for s in State if s.is_followed}


def test_a_view_that_caught_up_is_live() -> None:
    assert {new for (_, event), new in TRANSITIONS.items() if event is Event.CAUGHT_UP} == {State.LIVE}
