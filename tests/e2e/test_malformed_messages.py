"""A message that cannot be read is counted, kept and passed by; nothing else of its batch is lost."""

import os
from collections import Counter

from tests.e2e.clicks import make_clicks, spoil

NUM_MESSAGES, EVERY = 100_000 if "TORTURE_EXAMPLES" in os.environ else 20_000, 100


def test_of_many_messages_the_malformed_one_in_a_hundred_reaches_the_dead_letter_topic(workspace) -> None:
    values = list(make_clicks(NUM_MESSAGES))
    expected: dict[int, str] = {}
    for number, offset in enumerate(range(EVERY // 2, NUM_MESSAGES, EVERY)):
        values[offset], expected[offset] = spoil(values[offset], number % 10)
    workspace.start_broker()
    workspace.produce(values)

    status = workspace.train_until_end()

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


def test_a_topic_of_malformed_messages_alone_is_passed_to_its_end(workspace) -> None:
    good = make_clicks(10)
    workspace.start_broker()
    workspace.produce([spoil(value, kind)[0] for kind, value in enumerate(good)])

    status = workspace.train_until_end()

    assert status["samples_trained"] == 0
    assert sum(status["dead_letters"].values()) == 10
    assert status["positions"]["clicks/0"]["learned"] == 10
    assert len(workspace.consume("clicks.dead")) == 10
