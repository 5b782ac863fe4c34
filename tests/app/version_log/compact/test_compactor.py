"""The compactor: when a base is due, running beside a trainer, and after a kill."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from springtide.app.version_log.compact.compactor import Compactor
from springtide.app.version_log.disk_budget import folder_bytes
from springtide_client.format.records import VersionMeta
from springtide_client.log.base import MODEL, Base
from tests.support.config import CLICKS, write_config
from tests.support.processes import IMPORT_PATH
from tests.support.waiting import wait_until
from tests.support.writer_log import DIM, WINDOW, WriterLog, compact, config, put, row_tensors, rows_of, sync_twice

ROOT = Path(__file__).parents[4]


def test_compaction_is_due_after_time_or_many_bytes(log, monkeypatch) -> None:
    with log.writer(durable_seconds=0.01) as writer:
        now = 1.0e9

        def compactor(**changes: object) -> Compactor:
            return Compactor(config(log.path, **changes), window_samples=WINDOW)

        put(writer, 1)
        sync_twice(writer)
        created = Base.open(log.directory.bases()[0]).manifest.created_ms / 1000
        monkeypatch.setattr("springtide.app.version_log.compact.compactor.time.time", lambda: now)
        now = created + 599
        assert not compactor().is_due()
        now = created + 601
        patient = compactor()
        assert patient.is_due()
        assert patient.compact() is not None
        now = created + 200
        assert not patient.is_due()
        monkeypatch.setattr("springtide.app.version_log.compact.compactor.SEGMENT_BYTES", 10)
        assert not compactor().is_due()  # not more than one base
        put(writer, 1, trainer={"padding": "x" * 10_000})
        sync_twice(writer)
        assert compactor().is_due()
        monkeypatch.undo()
        assert compactor(log_bytes=1 << 16).is_due() is False
        put(writer, 1, trainer={"padding": "x" * 40_000})
        sync_twice(writer)
        assert compactor(log_bytes=1 << 16).is_due()


def test_a_compactor_beside_a_trainer_keeps_the_log_small(log) -> None:
    stopping = threading.Event()
    compactor = Compactor(config(log.path, base_minutes=0.0001), window_samples=WINDOW)
    thread = threading.Thread(target=compactor.run, args=(stopping,))
    with log.writer(segment_bytes=1 << 16, durable_seconds=0.01) as writer:
        thread.start()
        expected = {}
        values = iter(range(1, 10**9))

        def learn_until_bases(count: int) -> bool:
            value = next(values) % 50 + 1
            put(writer, value)
            expected[0, value] = (float(value), 100)
            return len(seen) >= count or bool(seen.update(p.name for p in log.directory.bases()))

        seen: set[str] = set()
        wait_until(lambda: learn_until_bases(4))
        stopping.set()
        thread.join()
        sync_twice(writer)
        base = compact(log)
        assert rows_of(base.main.layer) == expected
        assert len(log.directory.bases()) <= 3


def test_a_killed_compactor_leaves_only_drafts_that_the_next_one_removes(log, tmp_path) -> None:
    with log.writer() as writer:
        for step in range(50):
            writer.append(VersionMeta(), row_tensors({(0, i): (float(step + 1), 1) for i in range(2000)}))
        sync_twice(writer)
        path = IMPORT_PATH
        settings = write_config(
            tmp_path / "compact.toml", CLICKS, {"log": {"path": str(log.path), "base_minutes": 1e-4}}
        )
        command = [sys.executable, "-m", "springtide", "compact", "--config", str(settings)]
        environment = {**os.environ, "PYTHONPATH": path}
        killed = subprocess.Popen(command, env=environment)
        wait_until(lambda: bool(list(log.path.glob(".tmp-base-*"))) or len(log.directory.bases()) > 1)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        before = log.heads()
        assert before[-1] == writer.durable
        left = log.directory.newest_base()
        # something new to compact, also if the first compactor had finished
        writer.append(VersionMeta(), row_tensors({(0, 0): (50.0, 1)}))
        sync_twice(writer)
        working = subprocess.Popen(command, env=environment)
        wait_until(lambda: log.directory.newest_base() != left)
        wait_until(lambda: not list(log.path.glob(".tmp-*")))
        working.terminate()
        assert working.wait() == 0
        base = log.directory.open_base()
        base.verify()
        assert rows_of(base.main.layer) == {(0, i): (50.0, 1) for i in range(2000)}


def test_the_first_bases_of_two_dimensions_are_as_wide(log) -> None:
    with log.writer():
        base = log.directory.open_base()
    assert base.main.rows.value.shape == (0, DIM)


def test_one_compaction_makes_room_in_a_full_log(log) -> None:
    cap = 64 << 10
    with log.writer(log_bytes=cap) as writer:
        for value in range(8):
            writer.append(VersionMeta(trainer={"padding": "x" * (10 << 10)}), row_tensors({(0, value): (1.0, 1)}))
        sync_twice(writer)
        assert folder_bytes(log.path) > cap
        Compactor(config(log.path, log_bytes=cap), window_samples=WINDOW).compact()
        assert folder_bytes(log.path) < cap


def test_bases_go_on_while_only_their_model_is_damaged_and_its_damage_stays_visible(log: WriterLog) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
        before = compact(log)
        (before.path / MODEL).write_bytes(b"x")
        put(writer, 2)
        sync_twice(writer)
        base = compact(log)
    assert len(log.rows_in(base)) == 2
    assert base.manifest.files[MODEL] == before.manifest.files[MODEL]
    assert not base.is_sound(MODEL)
