"""The next base equals the log at a durable version."""

import random

import numpy as np
import pytest

from springtide.app.version_log.write.writer import LogWriter
from springtide_client.format.records import CommandEntry, VersionMeta
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.log.base import Base
from tests.support.damage import flip
from tests.support.writer_log import FEATURES, WriterLog, compact, put, row_tensors, rows_of, sync_twice


def test_only_durable_versions_are_compacted(log) -> None:
    with log.writer() as writer:
        first = put(writer, 1)
        writer.sync()
        assert compact(log) is None  # no version records yet that it is durable
        put(writer, 2)
        writer.sync()
        base = compact(log)
        assert base.head == first
        assert rows_of(base.main.layer) == {(0, 1): (1.0, 100)}
        assert compact(log) is None


@pytest.mark.parametrize(
    ("log", "pending_bytes"),
    [("one table", 1), ("one table", 3_000), ("one table", 1 << 30), ("three tables", 3_000)],
    indirect=["log"],
)
def test_a_base_equals_a_dictionary_after_the_same_versions(log, monkeypatch, pending_bytes: int) -> None:
    monkeypatch.setattr("springtide.app.version_log.read.replay_state.PENDING_BYTES", pending_bytes)
    rng = random.Random(5)
    features = FEATURES if log.tables else (0, 1)
    expected: dict[tuple[int, int], tuple[float, int]] = {}
    with log.writer() as writer:
        for round_number in range(12):
            horizon = 0
            for _ in range(rng.randrange(1, 8)):
                rows = {
                    (rng.choice(features), rng.randrange(60)): (float(rng.randrange(1, 99)), rng.randrange(1000))
                    for _ in range(rng.randrange(20))
                }
                forgotten = [(rng.choice(features), rng.randrange(60)) for _ in range(rng.randrange(4))]
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
            assert log.rows_in(base) == alive
            assert len(base) == len(alive)
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
    assert once.manifest.files == steps.manifest.files


@pytest.mark.parametrize("log", ["one table", "three tables"], indirect=True)
def test_rows_are_merged_in_several_blocks(log, monkeypatch) -> None:
    monkeypatch.setattr("springtide.app.version_log.compact.merge.CHUNK_ROWS", 7)
    expected = {(i % 2, i): (float(i + 1), 5) for i in range(100)}
    with log.writer() as writer:
        writer.append(VersionMeta(), row_tensors(expected))
        sync_twice(writer)
        assert compact(log)
        changed = {(i % 2, i): (float(i + 50), 6) for i in range(90, 130)}
        writer.append(VersionMeta(), row_tensors(changed, [(1, 3), (0, 500)]))
        sync_twice(writer)
        base = compact(log)
    expected = {key: row for key, row in (expected | changed).items() if key != (1, 3)}
    assert log.rows_in(base) == expected
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
    assert base.head == last
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
        assert texts_of(base) == {(0, 1): "eins", (0, 2): "zwei", (1, -4): "ürsprung", (1, 1): ""}
        writer.append(VersionMeta(), row_tensors({}, [(0, 1)]) | text_tensors({(1, 7): "sieben"}))
        sync_twice(writer)
        base = compact(log)
    assert texts_of(base) == {(0, 2): "zwei", (1, -4): "ürsprung", (1, 1): "", (1, 7): "sieben"}


@pytest.mark.parametrize("offset", [100, 400])
def test_corrupt_versions_are_not_compacted(log, offset: int) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
        flip(next(log.path.glob("seg-*")), offset)
        assert compact(log) is None


def test_a_flipped_bit_in_a_base_is_not_copied_into_the_next(log) -> None:
    with log.writer() as writer:
        for value in (1, 2):
            put(writer, value)
            sync_twice(writer)
            compact(log)
        damaged = log.directory.newest_base()
        assert damaged is not None
        flip(damaged / "rows.safetensors", -1)
        put(writer, 3)
        sync_twice(writer)
        base = compact(log)
    base.verify()
    assert rows_of(base.main.layer) == {(0, value): (float(value), 100) for value in (1, 2, 3)}
    assert damaged not in log.directory.bases()  # readers no longer start at it
    assert len(log.directory.bases()) == 3


def test_compaction_goes_on_if_all_bases_are_damaged(log) -> None:
    with log.writer() as writer:
        put(writer, 1)
        sync_twice(writer)
        for path in log.directory.bases():
            (path / "model.pt2").write_bytes(b"PROGRAM")
        assert compact(log) is not None


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
        assert (first.sketch, first.manifest.table.sketch_blocks) == (None, 0)
        writer.append(counting, row_tensors(shared) | blocks(b3=7, b1=5))
        sync_twice_as(writer, counting)
        second = compact(log)
        assert second.sketch[:, 9].tolist() == [0, 5, 0, 7]
        assert (second.manifest.table.sketch_blocks, second.manifest.meta.sketch_age) == (4, 2)
        assert rows_of(second.main.layer) == shared
        writer.append(counting, blocks(b1=6))
        sync_twice_as(writer, counting)
        third = compact(log)
        third.verify()
        assert third.sketch[:, 9].tolist() == [0, 6, 0, 7]
        assert second.sketch[1, 9] == 5
        restarted = VersionMeta(sketch_blocks=2, admission={"0": 3})
        writer.append(restarted, blocks(b0=1))
        sync_twice_as(writer, restarted)
        fourth = compact(log)
    assert fourth.sketch[:, 9].tolist() == [1, 0]


def sync_twice_as(writer: LogWriter, meta: VersionMeta) -> None:
    """Like `sync_twice`, with the meta repeated in both versions."""
    writer.sync()
    writer.append(meta, {})
    writer.sync()
