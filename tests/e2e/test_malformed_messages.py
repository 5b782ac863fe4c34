"""A message that cannot be decoded is counted, kept and skipped; nothing else of its batch is lost."""

from collections import Counter

from tests.e2e.clicks import corrupt, make_clicks
from tests.e2e.workspace import Workspace
from tests.support.scale import IS_LONG

NUM_MESSAGES, EVERY = 100_000 if IS_LONG else 20_000, 100


def test_malformed_messages_reach_the_dead_letter_topic(workspace: Workspace) -> None:
    values = list(make_clicks(NUM_MESSAGES))
    expected: dict[int, str] = {}
    for number, offset in enumerate(range(EVERY // 2, NUM_MESSAGES, EVERY)):
        values[offset], expected[offset] = corrupt(values[offset], number % 10)
    workspace.start_broker()
    workspace.produce(values)

    status = workspace.train_until_end("--no-compact")

    assert status["samples_trained"] == NUM_MESSAGES - len(expected)
    assert status["dead_letters"] == Counter(expected.values())
    assert status["positions"]["clicks/0"]["lag"] == 0
    dead = workspace.consume("clicks.dead")
    assert len(dead) == len(expected)
    for record in dead:
        headers = dict(record.headers)
        offset = int(headers["offset"])
        assert headers["topic"] == b"clicks"
        assert headers["partition"] == b"0"
        assert headers["reason"].decode() == expected[offset]
        assert record.value == values[offset]


def test_a_topic_of_malformed_messages_is_read_to_its_end(workspace: Workspace) -> None:
    valid = make_clicks(10)
    workspace.start_broker()
    workspace.produce([corrupt(value, kind)[0] for kind, value in enumerate(valid)])

    status = workspace.train_until_end("--no-compact")

    assert status["samples_trained"] == 0
    assert sum(status["dead_letters"].values()) == 10
    assert status["positions"]["clicks/0"]["learned"] == 10
    assert len(workspace.consume("clicks.dead")) == 10
