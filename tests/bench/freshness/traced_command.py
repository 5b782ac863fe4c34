"""Run `springtide train --no-compact` or `serve` with each stage timed: `traced_command train|serve CONFIG TRACE`.

The trace is written at the end: [stage, offset or version, start ns, end ns, ns of the processor's time], by the
system's monotonic clock.
"""

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Mark = tuple[str, int, int, int, int]
marks: list[Mark] = []


def clock(owner: type, name: str, stage: str, about: Callable[[tuple[Any, ...], Any], int | None]) -> None:
    """Time each call of a method; `about(arguments, result)` returns its offset or version, or None to skip it."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def clocked(*arguments: Any, **named: Any) -> Any:
        begun, used = time.monotonic_ns(), time.thread_time_ns()
        result = method(*arguments, **named)
        used, ended = time.thread_time_ns() - used, time.monotonic_ns()
        if (what := about(arguments, result)) is not None:
            marks.append((stage, what, begun, ended, used))
        return result

    setattr(owner, name, clocked)


def only(numbers: Any) -> int | None:
    """Return the number of the only partition."""
    return next(iter(numbers), None)


def number_of(piece: bytes) -> int:
    """Return the number of the version whose frame starts with `piece`."""
    from springtide_client.format.records import HEADER, parse_header

    return parse_header(piece[: HEADER.size]).number


def run_command(*words: str) -> None:
    """Run a command as the console script does, with its process settings."""
    from springtide.app.cli import main

    if code := main(words):
        sys.exit(code)


def train(config: str) -> None:
    from springtide.app.training.publisher import Publisher
    from springtide.app.training.state.training_state import TrainingState
    from springtide.app.version_log.write.segment_writer import RecordEncoder, SegmentWriter
    from springtide.app.version_log.write.writer import LogWriter
    from springtide.stream.decode.decoder import DecodePipeline

    clock(DecodePipeline, "decode", "decode", lambda _, columns: only(columns.end_offsets.values()))
    clock(TrainingState, "learn", "learn", lambda arguments, _: only(arguments[1].positions.values()))
    clock(
        TrainingState, "checkpoint", "checkpoint", lambda _, made: only(p["offset"] for p in made[0].positions.values())
    )
    clock(Publisher, "publish", "publish", lambda *_: 0)
    clock(LogWriter, "append_owned", "append", lambda _, number: int(number))
    clock(RecordEncoder, "encode", "encode", lambda _, head: int(head.number))
    clock(SegmentWriter, "write", "write", lambda arguments, _: number_of(b"".join(arguments[1][:1])))
    run_command("train", "--no-compact", "--config", config)


def serve(config: str) -> None:
    from springtide_client.follow.follower import Follower
    from springtide_client.log.cursor import LogCursor
    from springtide_client.model.view import View

    clock(LogCursor, "read", "read", lambda _, records: records[-1].number if records else None)
    clock(View, "apply", "apply", lambda arguments, _: arguments[1].number)
    clock(View, "prepare", "prepare", lambda arguments, _: arguments[0].version)
    clock(Follower, "_serve", "serve", lambda arguments, _: arguments[1].version)
    clock(View, "merged", "merge", lambda arguments, _: arguments[0].version)
    run_command("serve", "--config", config)


if __name__ == "__main__":
    kind, config, trace = sys.argv[1:]
    {"train": train, "serve": serve}[kind](config)
    Path(trace).write_text(json.dumps(marks))
