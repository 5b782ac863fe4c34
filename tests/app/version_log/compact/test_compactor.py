"""Bases written from the log: each equals the log at a durable version; what they cover is deleted."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from springtide_client.format.records import CommandEntry, Tip, VersionMeta
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.log.base import Base
from springtide_client.rows.row_layer import RowLayer

from app.version_log.compact.compactor import Compactor
from app.version_log.compact.merge import compact_log
from app.version_log.compact.retention import apply_retention
from app.version_log.disk_usage import folder_bytes
from app.version_log.write.writer import LogWriter
from tests.support.config import CLICKS, write_config
from tests.support.waiting import wait_until
from tests.support.writer_log import DIM, WriterLog, config, put, row_tensors, rows_of

ROOT = Path(__file__).parents[4]
WINDOW = 100


def compact(log: WriterLog, **changes: int) -> Base | None:
    path = compact_log(log.directory, window_samples=WINDOW, **changes)
    return None if path is None else Base.open(path)


def sync_twice(writer: LogWriter) -> None:
    """Make all versions durable, and append one that records it."""
    writer.sync()
    writer.append(VersionMeta(), {})
    writer.sync()


def as_states(base: Base) -> RowLayer:
    return base.layer


def test_only_durable_versions_are_compacted(log) -> None:
    with log.writer() as writer:
        first = put(writer, 1)
        writer.sync()
        assert compact(log) is None  # no version records yet that it is durable
        put(writer, 2)
        writer.sync()
        base = compact(log)
        assert base is not None
        assert base.tip == first
        assert rows_of(base.layer) == {(0, 1): (1.0, 100)}
        assert compact(log) is None


def test_a_base_equals_a_dictionary_after_the_same_versions(log) -> None:
    rng = random.Random(5)
    expected: dict[tuple[int, int], tuple[float, int]] = {}
    with log.writer() as writer:
        for round_number in range(12):
            horizon = 0
            for _ in range(rng.randrange(1, 8)):
                rows = {
                    (rng.randrange(2), rng.randrange(60)): (float(rng.randrange(1, 99)), rng.randrange(1000))
                    for _ in range(rng.randrange(20))
                }
                forgotten = [(rng.randrange(2), rng.randrange(60)) for _ in range(rng.randrange(4))]
                horizon = max(horizon, rng.choice([0, 0, 0, round_number * 20]))
                for key in forgotten:
                    expected.pop(key, None)
                expected |= rows
                writer.append(VersionMeta(expiry_cutoffs={"1": horizon}), row_tensors(rows, forgotten))
            alive = {key: row for key, row in expected.items() if key[0] != 1 or row[1] >= horizon}
            writer.sync()
            writer.append(VersionMeta(expiry_cutoffs={"1": horizon}), {})
            writer.sync()
            base = compact(log)
            assert base is not None
            assert rows_of(base.layer) == alive
            base.verify()
            expected = alive


def test_compaction_in_steps_writes_the_same_base(tmp_path) -> None:
    logs = [WriterLog(tmp_path / name) for name in ("once", "steps")]
    for log in logs:
        with log.writer() as writer:
            for step in range(30):
                put(writer, step % 7 + 1)
            sync_twice(writer)
    once = compact(logs[0])
    while (step := compact(logs[1], max_replayed_bytes=1)) is not None:
        steps = step
    assert once is not None
    assert once.manifest.files == steps.manifest.files


def test_rows_are_merged_in_several_blocks(log, monkeypatch) -> None:
    monkeypatch.setattr("app.version_log.compact.merge.CHUNK_ROWS", 7)
    expected = {(0, i): (float(i + 1), 5) for i in range(100)}
    with log.writer() as writer:
        writer.append(VersionMeta(), row_tensors(expected))
        sync_twice(writer)
        assert compact(log)
        changed = {(0, i): (float(i + 50), 6) for i in range(90, 130)}
        writer.append(VersionMeta(), row_tensors(changed, [(0, 3), (0, 500)]))
        sync_twice(writer)
        base = compact(log)
    assert base is not None
    expected = {key: row for key, row in (expected | changed).items() if key != (0, 3)}
    assert rows_of(base.layer) == expected
    base.verify()


def test_a_base_has_dense_state_scores_commands_and_meta(log) -> None:
    def scores(*clicks: float) -> dict[str, np.ndarray]:
        labels = np.array(clicks, np.float32)[:, None]
        return {
            "state.scores.logits": labels - 0.5,
            "state.scores.labels": labels,
            "state.scores.weights": np.ones(len(clicks), np.float32),
        }

    with log.writer() as writer:
        writer.append(
            VersionMeta(executed_commands=[CommandEntry(id="a")]),
            {"dense.w": np.full(3, 1, np.float32), **scores(1, 0)},
        )
        writer.append(
            VersionMeta(executed_commands=[CommandEntry(id="b")]), {"state.optimizer.step": np.array(9), **scores(1)}
        )
        last = writer.append(VersionMeta(step=4), {"dense.w": np.full(3, 2, np.float32)})
        writer.sync()
        writer.append(VersionMeta(step=5), {})
        writer.sync()
        base = compact(log)
    assert base is not None
    assert base.tip == last
    np.testing.assert_array_equal(base.dense["dense.w"], [2, 2, 2])
    assert base.trainer_state["state.optimizer.step"] == 9
    assert base.trainer_state["state.scores.window.labels"].ravel().tolist() == [1, 0, 1]
    assert "state.scores.logits" not in base.trainer_state
    assert base.trainer_state["state.scores.sums"][0, 0] == 3
    assert (base.manifest.meta.step, [order.id for order in base.manifest.meta.executed_commands]) == (4, ["a", "b"])
    assert base.model_path is not None
    assert base.model_path.read_bytes() == b"program"


def text_tensors(texts: dict[tuple[int, int], str]) -> dict[str, np.ndarray]:
    encoded = [text.encode() for text in texts.values()]
    return {
        "texts.feature": np.array([key[0] for key in texts], np.uint16),
        "texts.id": np.array([key[1] for key in texts], np.int64),
        "texts.offsets": np.cumsum([0, *map(len, encoded)]).astype(np.int64),
        "texts.bytes": np.frombuffer(b"".join(encoded), np.uint8),
    }


def texts_of(base: Base) -> dict[tuple[int, int], str]:
    if base.id_strings is None:
        return {}
    content, offsets = base.id_strings["bytes"].tobytes(), base.id_strings["offsets"].tolist()
    keys = list(zip(base.id_strings["feature"].tolist(), base.id_strings["id"].tolist(), strict=True))
    assert keys == sorted(keys)
    return {key: content[offsets[i] : offsets[i + 1]].decode() for i, key in enumerate(keys)}


def test_a_base_has_the_strings_of_its_live_ids(log) -> None:
    with log.writer() as writer:
        rows = {(0, 1): (1.0, 9), (0, 2): (2.0, 9), (1, 1): (3.0, 9)}
        writer.append(VersionMeta(), row_tensors(rows) | text_tensors({(0, 2): "zwei", (0, 1): "eins", (1, 1): ""}))
        writer.append(VersionMeta(), text_tensors({(1, -4): "ürsprung", (0, 1): "eins"}))
        sync_twice(writer)
        base = compact(log)
        assert base is not None
        assert texts_of(base) == {(0, 1): "eins", (0, 2): "zwei", (1, -4): "ürsprung", (1, 1): ""}
        writer.append(VersionMeta(), row_tensors({}, [(0, 1)]) | text_tensors({(1, 7): "sieben"}))
        sync_twice(writer)
        base = compact(log)
    assert base is not None
    assert texts_of(base) == {(0, 2): "zwei", (1, -4): "ürsprung", (1, 1): "", (1, 7): "sieben"}


def test_retention_deletes_what_the_oldest_retained_base_covers(log) -> None:
    with log.writer(segment_bytes=1 << 16) as writer:
        tips: list[Tip] = []
        for _ in range(4):
            tips += [put(writer, 1, trainer={"padding": "x" * 30_000}) for _ in range(8)]
            writer.sync()
            tips.append(writer.append(VersionMeta(), {}))
            writer.sync()
            compact(log)
            apply_retention(log.directory, 2)
            bases = log.directory.bases()
            assert len(bases) <= 2
            after_oldest = [record.tip for record in log.directory.records(Base.open(bases[0]).tip)]
            assert after_oldest == [tip for tip in tips if tip.number > Base.open(bases[0]).tip.number]
        segments = sorted(path.name for path in log.path.glob("seg-*"))
        assert "seg-0000000001-000000.log" not in segments
        first_kept = int(segments[0][-10:-4])
        assert segments == [f"seg-0000000001-{k:06d}.log" for k in range(first_kept, first_kept + len(segments))]
    with log.writer() as writer:
        assert writer.start_tip == tips[-1]
        apply_retention(log.directory, 1)
        assert [record.tip for record in log.directory.records(Base.open(log.directory.bases()[-1]).tip)] == tips[-1:]


def test_retention_deletes_segments_of_a_replaced_trainer(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
    ghost = log.path / "seg-0000000001-000009.log"
    with log.writer():
        ghost.write_bytes(b"ghost")
        assert ghost.name in apply_retention(log.directory, 2)
        assert not ghost.exists()


def test_nothing_is_deleted_while_an_epoch_starts(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
        compact(log)
        (log.path / "epoch-0000000002.claim").touch()
        assert apply_retention(log.directory, 1) == []


def test_a_damaged_newest_base_is_not_counted_as_retained(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
        base = compact(log)
        assert base is not None
        os.truncate(base.path / "rows.safetensors", 10)
        assert apply_retention(log.directory, 1) == []
        assert len(log.tips()) == 2  # from the base before it
        mended = compact(log)
        assert mended is not None
        assert mended.path == base.path
        mended.verify()
        Compactor(config(log.path), window_samples=WINDOW).compact()


def test_compaction_is_due_after_time_or_many_bytes(log, monkeypatch) -> None:
    with log.writer(durable_seconds=0.01) as writer:
        now = 1.0e9

        def compactor(**changes: object) -> Compactor:
            return Compactor(config(log.path, **changes), window_samples=WINDOW)

        put(writer, 1)
        sync_twice(writer)
        created = Base.open(log.directory.bases()[0]).manifest.created_ms / 1000
        monkeypatch.setattr("app.version_log.compact.compactor.time.time", lambda: now)
        now = created + 599
        assert not compactor().is_due()
        now = created + 601
        patient = compactor()
        assert patient.is_due()
        assert patient.compact() is not None
        now = created + 200
        assert not patient.is_due()
        monkeypatch.setattr("app.version_log.compact.compactor.SEGMENT_BYTES", 10)
        assert not compactor().is_due()  # not more than one base
        writer.append(VersionMeta(trainer={"padding": "x" * 10_000}), {})
        sync_twice(writer)
        assert compactor().is_due()
        monkeypatch.undo()
        assert compactor(log_bytes=1 << 16).is_due() is False
        writer.append(VersionMeta(trainer={"padding": "x" * 40_000}), {})
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
        assert base is not None
        assert rows_of(base.layer) == expected
        assert len(log.directory.bases()) <= 3


def test_a_killed_compactor_leaves_only_drafts_that_the_next_one_removes(log, tmp_path) -> None:
    with log.writer() as writer:
        for step in range(50):
            writer.append(VersionMeta(), row_tensors({(0, i): (float(step + 1), 1) for i in range(2000)}))
        sync_twice(writer)
        path = os.pathsep.join(map(str, (ROOT, ROOT / "deploy" / "client")))
        settings = write_config(
            tmp_path / "compact.toml", CLICKS, {"log": {"path": str(log.path), "base_minutes": 1e-4}}
        )
        command = [sys.executable, "-m", "app", "compact", "--config", str(settings)]
        environment = {**os.environ, "PYTHONPATH": path}
        killed = subprocess.Popen(command, env=environment)
        wait_until(lambda: bool(list(log.path.glob(".tmp-base-*"))) or len(log.directory.bases()) > 1)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        before = log.tips()
        assert before[-1] == writer.durable
        left = log.directory.newest_base()
        sync_twice(writer)  # something new to compact, also if the first compactor had finished
        working = subprocess.Popen(command, env=environment)
        wait_until(lambda: log.directory.newest_base() != left)
        wait_until(lambda: not list(log.path.glob(".tmp-*")))
        working.terminate()
        assert working.wait() == 0
        base = log.directory.open_base()
        assert base is not None
        base.verify()
        assert rows_of(base.layer) == {(0, i): (50.0, 1) for i in range(2000)}


def test_the_first_bases_of_two_dimensions_are_as_wide(log) -> None:
    with log.writer():
        base = log.directory.open_base()
    assert base is not None
    assert base.rows.value.shape == (0, DIM)


@pytest.mark.parametrize("flip", [100, 400])
def test_corrupt_versions_are_not_compacted(log, flip: int) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
        segment = next(log.path.glob("seg-*"))
        data = bytearray(segment.read_bytes())
        data[flip] ^= 1
        segment.write_bytes(data)
        assert compact(log) is None


def test_a_flipped_bit_in_a_base_is_not_copied_into_the_next(log) -> None:
    with log.writer() as writer:
        for value in (1, 2):
            put(writer, value)
            sync_twice(writer)
            compact(log)
        damaged = log.directory.newest_base()
        assert damaged is not None
        rows = damaged / "rows.safetensors"
        data = bytearray(rows.read_bytes())
        data[-1] ^= 1
        rows.write_bytes(data)
        put(writer, 3)
        sync_twice(writer)
        base = compact(log)
    assert base is not None
    base.verify()
    assert rows_of(base.layer) == {(0, value): (float(value), 100) for value in (1, 2, 3)}
    assert damaged not in log.directory.bases()  # readers no longer start at it
    assert len(log.directory.bases()) == 3


def test_compaction_goes_on_if_all_bases_are_damaged(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
        for path in log.directory.bases():
            (path / "model.pt2").write_bytes(b"PROGRAM")
        assert compact(log) is not None


def test_one_compaction_makes_room_in_a_full_log(log) -> None:
    cap = 64 << 10
    with log.writer(log_bytes=cap) as writer:
        for value in range(8):
            writer.append(VersionMeta(trainer={"padding": "x" * (10 << 10)}), row_tensors({(0, value): (1.0, 1)}))
        sync_twice(writer)
        assert folder_bytes(log.path) > cap
        Compactor(config(log.path, log_bytes=cap), window_samples=WINDOW).compact()
        assert folder_bytes(log.path) < cap


def blocks(**counts: int) -> dict[str, np.ndarray]:
    """Return sketch blocks, each filled with one number."""
    numbers = np.array([int(name[1:]) for name in counts], np.int64)
    content = np.array([[count] * 64 for count in counts.values()], np.uint8)
    return {"sketch.block": numbers, "sketch.bytes": content}


def test_a_base_has_the_admission_sketch_and_shared_rows(log) -> None:
    shared = {(SHARED_ROW_OFFSET, 0): (3.0, 50), (0, 1): (4.0, 60)}
    counting = VersionMeta(sketch_blocks=4, sketch_age=2, admission={"0": 3})
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
        first = compact(log)
        assert first is not None
        assert (first.sketch, first.manifest.table.sketch_blocks) == (None, 0)
        writer.append(counting, row_tensors(shared) | blocks(b3=7, b1=5))
        sync_twice_as(writer, counting)
        second = compact(log)
        assert second is not None
        assert second.sketch[:, 9].tolist() == [0, 5, 0, 7]
        assert (second.manifest.table.sketch_blocks, second.manifest.meta.sketch_age) == (4, 2)
        assert rows_of(second.layer) == shared
        writer.append(counting, blocks(b1=6))
        sync_twice_as(writer, counting)
        third = compact(log)
        assert third is not None
        third.verify()
        assert third.sketch[:, 9].tolist() == [0, 6, 0, 7]
        assert second.sketch[1, 9] == 5
        restarted = VersionMeta(sketch_blocks=2, admission={"0": 3})
        writer.append(restarted, blocks(b0=1))
        sync_twice_as(writer, restarted)
        fourth = compact(log)
    assert fourth is not None
    assert fourth.sketch[:, 9].tolist() == [1, 0]


def sync_twice_as(writer: LogWriter, meta: VersionMeta) -> None:
    """Like `sync_twice`, with the meta repeated in both versions."""
    writer.sync()
    writer.append(meta, {})
    writer.sync()
