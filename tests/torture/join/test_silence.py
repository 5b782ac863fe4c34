"""While clicks or impressions are silent no open window is learned; `tests/torture/join/silence.py` has the hour."""

from pathlib import Path

from tests.support.process_pool import ProcessPool
from tests.torture.join.silence import SilentTopics, play


def test_no_open_window_is_learned_while_a_topic_is_silent_and_everything_afterwards(
    tmp_path: Path, process_pool: ProcessPool
) -> None:
    topics = SilentTopics(tmp_path, process_pool, per_second=10, hour_ms=600_000)
    try:
        play(topics, 600_000, 2.0, print)
    finally:
        topics.close()
