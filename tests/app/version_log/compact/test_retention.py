"""Retention: what newer bases replace is deleted, and the rest stays readable."""

import os

from springtide.app.version_log.compact.compactor import Compactor
from springtide.app.version_log.compact.retention import apply_retention
from springtide_client.format.records import Tip, VersionMeta
from springtide_client.log.base import Base
from tests.support.writer_log import WINDOW, compact, config, put, sync_twice


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
