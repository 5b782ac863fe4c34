"""What is wrong with a log is found, whatever it is, and named with its file."""

import json
import os
import random
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from springtide.app.errors import UserError
from springtide.app.version_log.compact.retention import apply_retention
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.trainer_status import TrainerStatus, write_status
from springtide.app.version_log.verify.report import Finding, VerifyReport
from springtide.app.version_log.verify.verify import verify
from springtide_client.format.checksums import encode_checksummed_json
from springtide_client.format.records import VersionMeta
from springtide_client.keys import hash_string
from springtide_client.log.base import MANIFEST, ROWS, STATE, read_base_manifest
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_name, claim_name, manifest_name, segment_name
from tests.support.damage import flip, forge
from tests.support.random_versions import RandomVersions
from tests.support.records import encode_record
from tests.support.writer_log import SCHEMA, WriterLog, compact, put, row_tensors

PRINT = SCHEMA.fingerprint()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Write a log of two epochs, several files, three bases, and versions after the last one."""
    log = WriterLog(tmp_path_factory.mktemp("made") / "log")
    made: RandomVersions | None = None
    for epoch in (1, 2):
        with log.writer(segment_bytes=1 << 16) as writer:
            made = made or RandomVersions(log, writer)
            made.writer = writer
            made.write(8)
            text = f"text {epoch}".encode()
            texts = {
                "texts.feature": np.array([0], np.uint16),
                "texts.id": np.array([hash_string(text)], np.int64),
                "texts.offsets": np.array([0, len(text)], np.int64),
                "texts.bytes": np.frombuffer(text, np.uint8),
            }
            made.append({(0, hash_string(text)): (3.0, 9_000)}, [], texts | {"dense.w": np.full(3, epoch, np.float32)})
            made.compact()
            made.write(4)
            writer.sync()
    return log.path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "log"))


def report_of(path: Path, **changes) -> VerifyReport:
    return verify(LogDirectory(path), **changes)


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("seg-*"))


def entries(path: Path) -> list:
    return LogIndex(LogDirectory(path)).entries


def test_a_valid_log_is_reported_completely_and_without_errors(path: Path) -> None:
    reported: list[Finding] = []
    report = report_of(path, deep=True, on_finding=reported.append)
    assert report.errors == []
    assert reported == report.all
    text = "\n".join(map(str, reported))
    for words in (
        "2 epochs: claims and manifests",
        "base 1.0: 0 rows",
        "epoch 1: 14 versions, 1.1 to 1.14",
        "epoch 2: 14 versions",
        "base 1.0 and 9 versions replay to base 1.9",
        "replay to base 2.9",
        "base 1.0 is the oldest: nothing before it is left to replay it from",
    ):
        assert words in text, text


@pytest.mark.parametrize("range_bytes", [300, 2_000])
def test_replaying_in_key_ranges_reports_the_same(path: Path, range_bytes: int) -> None:
    assert list(map(str, report_of(path, deep=True, range_bytes=range_bytes).all)) == list(
        map(str, report_of(path, deep=True).all)
    )


def test_a_flipped_bit_is_found_wherever_it_is(path: Path) -> None:
    rng = random.Random(4)
    files = [*segments(path), *path.glob("base-*/*"), path / manifest_name(2)]
    assert len(files) > 12
    for file in files:
        original = file.read_bytes()
        for _ in range(25):
            offset, bit = rng.randrange(len(original)), 1 << rng.randrange(8)
            flip(file, offset, bit)
            wrong = report_of(path).errors
            name = str(file.relative_to(path))
            assert any(finding.file == name for finding in wrong), (name, offset, bit)
            if name.startswith("seg"):
                starts = [place for place in (f.offset for f in wrong if f.file == name) if place is not None]
                assert min(starts) <= offset
            assert all(finding.consequence for finding in wrong)
            file.write_bytes(original)
    assert report_of(path).errors == []


def test_records_after_a_corrupt_one_are_checked_too(path: Path) -> None:
    first, second = (entry for entry in entries(path) if entry.number in ((1 << 32) + 3, (1 << 32) + 6))
    for entry in (first, second):
        flip(entry.frame.path, entry.frame.offset + entry.num_bytes - 2)
    places = [finding.offset for finding in report_of(path).errors]
    assert places == [first.frame.offset, second.frame.offset]


@pytest.mark.parametrize("cut", [1, 30, 60, 500])
def test_a_truncated_segment_is_found(path: Path, cut: int) -> None:
    sealed = segments(path)[0]
    os.truncate(sealed, sealed.stat().st_size - cut)
    wrong = report_of(path).errors
    assert wrong[0].file == sealed.name
    assert "it was sealed at" in wrong[0].what
    assert wrong[0].offset == sealed.stat().st_size


def test_an_incomplete_last_record_is_an_error_only_if_it_was_durable(path: Path) -> None:
    last = segments(path)[-1]
    os.truncate(last, last.stat().st_size - 10)
    report = report_of(path)
    assert report.errors == []
    assert any("incomplete record" in finding.what for finding in report.all)
    write_status(path, 2, TrainerStatus(durable_version=entries(path)[-1].number + 1))
    (wrong,) = report_of(path).errors
    assert wrong.file == last.name
    assert "was durable" in wrong.what


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_segment_is_found(path: Path, number: int) -> None:
    file = segments(path)[number]
    last = entries(path)[-1].number
    file.unlink()
    write_status(path, 2, TrainerStatus(durable_version=last))
    wrong = report_of(path).errors
    assert wrong
    if number == 0:
        assert f"{file.name} is missing" in wrong[0].what


def test_followers_that_start_at_the_newest_base_do_not_need_missing_records_before_it(path: Path) -> None:
    for file in segments(path):
        file.unlink()
    log = WriterLog(path)
    with log.writer() as writer:
        head = put(writer, 9)
        writer.sync()
    assert log.heads() == [head]
    wrong = report_of(path).errors
    assert wrong
    assert all("followers start at base" in str(finding) for finding in wrong)


@pytest.mark.parametrize("name", [claim_name(1), claim_name(2), manifest_name(2), f"{base_name(1 << 32)}/{ROWS}"])
def test_a_missing_file_is_found(path: Path, name: str) -> None:
    (path / name).unlink()
    wrong = report_of(path).errors
    assert wrong[0].file == name
    assert "it is missing" in wrong[0].what
    assert len(wrong) == 1 or name == manifest_name(2)  # without it nothing of its epoch can be read


def test_a_swapped_record_is_found(path: Path) -> None:
    first, second = entries(path)[2:4]
    content = first.frame.path.read_bytes()
    frames = [content[entry.frame.offset : entry.frame.offset + entry.num_bytes] for entry in (first, second)]
    end = second.frame.offset + second.num_bytes
    first.frame.path.write_bytes(content[: first.frame.offset] + frames[1] + frames[0] + content[end:])
    wrong = report_of(path).errors
    assert wrong[0].offset == first.frame.offset
    assert "does not follow" in wrong[0].what
    assert any("numbers must grow" in finding.what for finding in wrong)


def test_a_record_of_another_log_is_found(path: Path) -> None:
    entry = entries(path)[4]
    meta = VersionMeta(fingerprint=PRINT)
    frame, _ = encode_record(1, entry.number, entry.header.parent, meta, {"dense.w": np.zeros(3, np.float32)})
    content = entry.frame.path.read_bytes()
    entry.frame.path.write_bytes(content[: entry.frame.offset] + frame + content[entry.frame.end :])
    assert any("does not follow" in finding.what for finding in report_of(path).errors)


def newest_base(path: Path) -> Path:
    return sorted(path.glob("base-*"))[-1]


def test_a_wrong_row_in_a_base_is_found_by_replaying(path: Path) -> None:
    def change(arrays: dict) -> None:
        arrays["value"][5, 1] += 1

    forge(newest_base(path), ROWS, change)
    assert report_of(path).errors == []
    (wrong,) = report_of(path, deep=True).errors
    assert wrong.file == f"{newest_base(path).name}/{ROWS}"
    assert wrong.what.startswith("row 5 (")
    assert "its value differs from the log" in wrong.what


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        (ROWS, "count", "its count differs"),
        (ROWS, "last_seen", "its last seen differs"),
        ("optimizer.safetensors", "state", "its state differs"),
        ("dense.safetensors", "dense.w", "dense.w differs"),
    ],
)
def test_any_other_difference_in_a_base_is_found_by_replaying(path: Path, name: str, tensor: str, words: str) -> None:
    def change(arrays: dict) -> None:
        arrays[tensor].reshape(-1)[0] += 1

    forge(newest_base(path), name, change)
    wrong = report_of(path, deep=True).errors
    assert any(finding.file == f"{newest_base(path).name}/{name}" and words in finding.what for finding in wrong)


def test_an_exact_state_replaces_all_of_the_one_before(log: WriterLog) -> None:
    def append(value: float, *names: str) -> None:
        state = {f"state.{name}": np.full(3, value) for name in ("random", *names)}
        writer.append(VersionMeta(fingerprint=PRINT), row_tensors({(0, 1): (value, 100)}) | state)

    with log.writer() as writer:
        for value, names in enumerate(([], ["accumulated.gradient.w"], [], ["accumulated.gradient.w"])):
            append(value)
            append(value + 0.25, "accumulated.gradient.w")
            append(value + 0.5, *names)
            writer.sync()
            writer.append(VersionMeta(fingerprint=PRINT), {})  # says that those before are durable
            writer.sync()
            base = compact(log)
            assert ("state.accumulated.gradient.w" in base.trainer_state) == bool(names)
    assert report_of(log.path, deep=True, keep_bases=9).errors == []

    def change(arrays: dict) -> None:
        arrays["state.accumulated.gradient.w"][0] += 1

    forge(base.path, STATE, change)
    wrong = report_of(log.path, deep=True, keep_bases=9).errors
    assert [finding.file for finding in wrong if "gradient.w differs" in finding.what] == [f"{base.path.name}/{STATE}"]


def test_rows_in_the_wrong_order_are_found_without_replaying(path: Path) -> None:
    def swap(arrays: dict) -> None:
        for tensor in ("mixed", "id", "feature"):
            arrays[tensor][[2, 3]] = arrays[tensor][[3, 2]]

    forge(newest_base(path), ROWS, swap)
    assert any("order of key hashes" in finding.what for finding in report_of(path).errors)


def test_a_base_of_another_version_is_found(path: Path) -> None:
    folder = newest_base(path)
    manifest = read_base_manifest(folder)
    (folder / MANIFEST).write_bytes(encode_checksummed_json(msgspec.structs.replace(manifest, checksum=77)))
    assert any("is not the one that a base" in finding.what for finding in report_of(path).errors)


@pytest.mark.parametrize("name", ["notes.txt", "base-old", segment_name(3, 0), f"{base_name(1 << 32)}/notes.txt"])
def test_an_unknown_file_is_found(path: Path, name: str) -> None:
    (path / name).write_text("mine")
    (wrong,) = report_of(path).errors
    assert wrong.file == name
    assert "remove it" in str(wrong)


def test_files_that_springtide_makes_are_known(path: Path) -> None:
    for name in (
        "broker.json",
        "simulator.json",
        "compactor.lock",
        "corruption.json",
        ".tmp-base-00000000004294967300-7",
        "status-0000000001.json",
    ):
        (path / name).write_text("{}")
    (path / "commands").mkdir()
    assert report_of(path).errors == []


def test_bytes_of_a_replaced_trainer_are_a_note(log: WriterLog) -> None:
    fenced = log.open()
    put(fenced, 1, fingerprint=PRINT)
    fenced.sync()
    with log.writer(take_over=True) as writer:
        put(writer, 2, fingerprint=PRINT)
        writer.sync()
        with segments(log.path)[0].open("ab") as file:
            file.write(b"written after the seal")
        (log.path / segment_name(1, 7)).write_bytes(b"a stray segment")
        report = report_of(log.path)
    assert report.errors == []
    notes = [str(finding) for finding in report.all if finding.level == "note"]
    assert any("after the seal" in note for note in notes)
    assert any("left by a replaced trainer" in note for note in notes)
    log.kill(fenced)


def test_positions_may_go_back_only_by_rollback_or_at_a_start(log: WriterLog) -> None:
    def at(offset: int, **changes) -> VersionMeta:
        positions = {"clicks/0": {"topic_id": "t", "offset": offset}}
        return VersionMeta(fingerprint=PRINT, positions=positions, **changes)

    with log.writer() as writer:
        for meta in (at(5), at(9), at(4, restores=1 << 32), at(6)):
            writer.append(meta, {})
    with log.writer() as writer:
        writer.append(at(2), {})
        writer.sync()
        report = report_of(log.path)
        assert report.errors == []
        assert any("went back from 6 to 2, at the start" in finding.what for finding in report.all)
        writer.append(at(1), {})
        writer.append(VersionMeta(fingerprint=PRINT, positions=at(1).positions, expiry_cutoffs={"1": 5}), {})
        writer.append(VersionMeta(fingerprint=PRINT, positions=at(1).positions, expiry_cutoffs={"1": 4}), {})
        writer.sync()
        what = [finding.what for finding in report_of(log.path).errors]
    assert len(what) == 2
    assert "clicks/0 went back from 2 to 1" in what[0]
    assert "expiry cutoff of feature 1 went back" in what[1]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"rows.id": np.zeros(1, np.int64)}, "rows lack a column"),
        (row_tensors({(0, 1): (1.0, 1)}) | {"rows.count": np.zeros(2, np.int64)}, "different lengths"),
        (row_tensors({(7, 1): (1.0, 1)}), "not in the schema"),
        ({"forgotten.feature": np.zeros(2, np.uint16), "forgotten.id": np.zeros(2, np.int64)}, "name a key twice"),
        (row_tensors({(0, 1): (1.0, 1)}) | {"rows.value": np.zeros((1, 3), np.float32)}, "rows of width"),
    ],
)
def test_malformed_contents_with_a_correct_checksum_are_found(log: WriterLog, tensors, words: str) -> None:
    with log.writer() as writer:
        writer.append(VersionMeta(fingerprint=PRINT), tensors)
        writer.sync()
        (wrong,) = report_of(log.path).errors
    assert words in wrong.what


def test_a_log_stays_valid_while_trainer_and_compactor_run(log: WriterLog) -> None:
    with log.writer(segment_bytes=1 << 16) as writer:
        made = RandomVersions(log, writer)
        for _ in range(6):
            made.write(30)
            made.compact()
            apply_retention(log.directory, 2)
            assert report_of(log.path, deep=True).errors == []


def test_a_missing_log_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no log"):
        report_of(tmp_path / "nowhere")


def test_a_trainer_that_died_while_starting_is_a_note(path: Path) -> None:
    (path / claim_name(3)).touch()
    report = report_of(path)
    assert report.errors == []
    assert any("epoch 3 is claimed but has no manifest" in finding.what for finding in report.all)


def test_a_finding_as_json_has_all_fields(path: Path) -> None:
    (path / "notes.txt").touch()
    finding = json.loads(json.dumps([vars(finding) for finding in report_of(path).all]))[0]
    assert set(finding) == {"level", "what", "file", "offset", "consequence"}
