"""Kills, pauses and power losses of a writing process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from springtide_client.format.records import Head
from springtide_client.log.directory import LogDirectory
from springtide_client.log.frames import sound_frames
from tests.support.processes import IMPORT_PATH
from tests.support.writer_log import WriterLog, put

ROOT = Path(__file__).parents[4]


def start_appender(log: WriterLog, *arguments: str) -> subprocess.Popen[str]:
    path = IMPORT_PATH
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.app.version_log.write.appender", str(log.path), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("started")
    return process


def read_durable(process: subprocess.Popen[str]) -> Head:
    assert process.stdout is not None
    number, checksum = process.stdout.readline().split()
    return Head(int(number), int(checksum))


def kill(process: subprocess.Popen[str]) -> list[Head]:
    """Kill the process; return everything it reported as durable."""
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    return [Head(*map(int, line.split())) for line in said.splitlines() if len(line.split()) == 2 and line[-1:] != ""]


def test_a_kill_loses_nothing_durable_and_the_chain_stays_intact(log) -> None:
    said: list[Head] = []
    for _ in range(4):
        process = start_appender(log)
        said += [read_durable(process) for _ in range(3)]
        said += kill(process)
    with log.writer() as writer:
        assert writer.epoch == 5
        head = put(writer, 5)
    heads = log.heads()
    assert heads[-1] == head
    assert set(said) <= {*heads, *(Head(epoch << 32, epoch << 32) for epoch in range(6))}
    assert [t.number for t in heads] == sorted({t.number for t in heads})


def test_a_power_loss_loses_only_what_was_not_durable(log) -> None:
    process = start_appender(log)
    durable = [read_durable(process) for _ in range(3)][-1]
    kill(process)
    sizes = {path: path.stat().st_size for path in log.path.glob("seg-*")}
    ends: dict[Path, int] = {}
    for path in sorted(sizes):
        frames = [frame for frame in sound_frames(path) if frame.header.number <= durable.number]
        ends[path] = max((frame.end for frame in frames), default=0)
    # the disk may keep any prefix of what was not fsynced: here the durable part and a bit of the next record
    for path, size in sizes.items():
        os.truncate(path, min(size, ends[path] + 13))
    with log.writer() as writer:
        assert writer.start_head == durable
        head = put(writer, 7)
    assert log.heads()[-2:] == [durable, head]


def test_a_fenced_trainer_that_resumes_after_a_pause_changes_nothing(log) -> None:
    process = start_appender(log)
    said = [read_durable(process)]
    process.send_signal(signal.SIGSTOP)
    with log.writer(take_over=True) as writer:
        past = writer.start_head
        assert past is not None
        heads = [put(writer, 1)]
        writer.sync()
        process.send_signal(signal.SIGCONT)
        process.wait(timeout=300)  # it notices, and exits with an error
        assert process.returncode == 1
        heads.append(put(writer, 2))
    process.communicate()
    records = list(LogDirectory(log.path).records(past))
    assert [record.head for record in records] == heads
    assert said[0].number <= past.number
