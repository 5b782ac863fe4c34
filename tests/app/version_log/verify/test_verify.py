"""What is wrong with a log is found, whatever it is, and named with its file."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from springtide_client.format.checksummed_json import encode_checksummed_json
from springtide_client.format.records import VersionMeta, encode_record
from springtide_client.format.tensors import map_tensors
from springtide_client.keys import hash_string
from springtide_client.log.base import MANIFEST, ROWS, read_base_manifest
from springtide_client.log.directory import LogDirectory, base_name, claim_name, manifest_name, segment_name

from app.errors import UserError
from app.version_log.compact.base_writer import crc32_of_file
from app.version_log.compact.retention import apply_retention
from app.version_log.read.index import LogIndex
from app.version_log.trainer_status import write_status
from app.version_log.verify.report import Finding, VerifyReport
from app.version_log.verify.verify import verify
from tests.support.random_versions import RandomVersions
from tests.support.writer_log import SCHEMA, WriterLog, put, row_tensors

PRINT = SCHEMA.fingerprint()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Two epochs, several files, three bases, and versions behind the last one."""
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


def look(path: Path, **changes) -> VerifyReport:
    return verify(LogDirectory(path), **changes)


def flip(file: Path, offset: int, bit: int = 1) -> None:
    """One bit of a file; bases share files, so it becomes one of its own."""
    content = bytearray(file.read_bytes())
    content[offset] ^= bit
    file.unlink()
    file.write_bytes(content)


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("seg-*"))


def entries(path: Path) -> list:
    return LogIndex(LogDirectory(path)).entries


def test_a_sound_log_is_covered_whole(path: Path) -> None:
    told: list[Finding] = []
    findings = look(path, deep=True, tell=told.append)
    assert findings.errors == []
    assert told == findings.all
    said = "\n".join(map(str, told))
    for words in (
        "2 epochs: claims and manifests",
        "base 1.0: 0 rows",
        "epoch 1: 14 versions, 1.1 to 1.14",
        "epoch 2: 14 versions",
        "base 1.0 and 9 versions give base 1.9",
        "give base 2.9",
        "base 1.0 is the oldest: nothing before it is left to replay",
    ):
        assert words in said, said


@pytest.mark.parametrize("range_bytes", [300, 2_000])
def test_a_deep_look_in_parts_finds_the_same(path: Path, range_bytes: int) -> None:
    assert list(map(str, look(path, deep=True, range_bytes=range_bytes).all)) == list(
        map(str, look(path, deep=True).all)
    )


def test_a_flipped_bit_is_found_wherever_it_is(path: Path) -> None:
    rng = random.Random(4)
    files = [*segments(path), *path.glob("base-*/*"), path / manifest_name(2)]
    assert len(files) > 12
    for file in files:
        sound = file.read_bytes()
        for _ in range(25):
            offset, bit = rng.randrange(len(sound)), 1 << rng.randrange(8)
            flip(file, offset, bit)
            wrong = look(path).errors
            name = str(file.relative_to(path))
            assert any(finding.file == name for finding in wrong), (name, offset, bit)
            if name.startswith("seg"):
                begins = [place for place in (f.offset for f in wrong if f.file == name) if place is not None]
                assert min(begins) <= offset
            assert all(finding.consequence for finding in wrong)
            file.write_bytes(sound)
    assert look(path).errors == []


def test_every_record_of_a_file_is_checked_behind_a_damaged_one(path: Path) -> None:
    first, second = (entry for entry in entries(path) if entry.number in ((1 << 32) + 3, (1 << 32) + 6))
    for entry in (first, second):
        flip(entry.path, entry.offset + entry.num_bytes - 2)
    places = [finding.offset for finding in look(path).errors]
    assert places == [first.offset, second.offset]


@pytest.mark.parametrize("cut", [1, 30, 60, 500])
def test_a_truncated_segment_is_found(path: Path, cut: int) -> None:
    sealed = segments(path)[0]
    os.truncate(sealed, sealed.stat().st_size - cut)
    wrong = look(path).errors
    assert wrong[0].file == sealed.name
    assert "it was sealed at" in wrong[0].what
    assert wrong[0].offset == sealed.stat().st_size


def test_an_end_that_is_cut_is_half_a_record_unless_it_was_durable(path: Path) -> None:
    last = segments(path)[-1]
    os.truncate(last, last.stat().st_size - 10)
    findings = look(path)
    assert findings.errors == []
    assert any("not whole" in finding.what for finding in findings.all)
    write_status(path, 2, {"durable_version": entries(path)[-1].number + 1})
    (wrong,) = look(path).errors
    assert wrong.file == last.name
    assert "was durable" in wrong.what


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_segment_is_found(path: Path, number: int) -> None:
    file = segments(path)[number]
    last = entries(path)[-1].number
    file.unlink()
    write_status(path, 2, {"durable_version": last})
    wrong = look(path).errors
    assert wrong
    if number == 0:
        assert f"{file.name} is not there" in wrong[0].what


def test_what_is_missing_before_the_newest_base_is_missed_by_nobody_who_begins_there(path: Path) -> None:
    for file in segments(path):
        file.unlink()
    log = WriterLog(path)
    with log.writer() as writer:
        tip = put(writer, 9)
        writer.sync()
    assert log.tips() == [tip]
    wrong = look(path).errors
    assert wrong
    assert all("followers begin at base" in str(finding) for finding in wrong)


@pytest.mark.parametrize("name", [claim_name(1), claim_name(2), manifest_name(2), f"{base_name(1 << 32)}/{ROWS}"])
def test_a_missing_file_is_found(path: Path, name: str) -> None:
    (path / name).unlink()
    wrong = look(path).errors
    assert wrong[0].file == name
    assert "it is missing" in wrong[0].what
    assert len(wrong) == 1 or name == manifest_name(2)  # without it nothing of its epoch can be read


def test_a_swapped_record_is_found(path: Path) -> None:
    first, second = entries(path)[2:4]
    content = first.path.read_bytes()
    frames = [content[entry.offset : entry.offset + entry.num_bytes] for entry in (first, second)]
    end = second.offset + second.num_bytes
    first.path.write_bytes(content[: first.offset] + frames[1] + frames[0] + content[end:])
    wrong = look(path).errors
    assert wrong[0].offset == first.offset
    assert "does not follow" in wrong[0].what
    assert any("numbers only grow" in finding.what for finding in wrong)


def test_a_record_of_another_log_is_found(path: Path) -> None:
    entry = entries(path)[4]
    meta = VersionMeta(fingerprint=PRINT)
    frame, _ = encode_record(1, entry.number, entry.header.parent, meta, {"dense.w": np.zeros(3, np.float32)})
    content = entry.path.read_bytes()
    entry.path.write_bytes(content[: entry.offset] + frame + content[entry.offset + entry.num_bytes :])
    assert any("does not follow" in finding.what for finding in look(path).errors)


def forge(folder: Path, name: str, change: Callable[[dict], None]) -> None:
    """Change tensors of a base in place, and make its manifest say that all is well."""
    manifest = read_base_manifest(folder)
    arrays = {tensor: np.array(array) for tensor, array in map_tensors(folder / name).items()}
    before = {tensor: array.tobytes() for tensor, array in arrays.items()}
    change(arrays)
    content = (folder / name).read_bytes()
    for tensor, array in arrays.items():
        content = content.replace(before[tensor], array.tobytes()) if len(array) else content
    (folder / name).unlink()
    (folder / name).write_bytes(content)
    manifest.files[name].crc32 = crc32_of_file(folder / name)
    (folder / MANIFEST).write_bytes(encode_checksummed_json(manifest))


def newest_base(path: Path) -> Path:
    return sorted(path.glob("base-*"))[-1]


def test_a_base_with_a_wrong_row_is_found_by_a_deep_look(path: Path) -> None:
    def change(arrays: dict) -> None:
        arrays["value"][5, 1] += 1

    forge(newest_base(path), ROWS, change)
    assert look(path).errors == []
    (wrong,) = look(path, deep=True).errors
    assert wrong.file == f"{newest_base(path).name}/{ROWS}"
    assert wrong.what.startswith("row 5 (")
    assert "its value is not that of the log" in wrong.what


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        (ROWS, "count", "its count is not"),
        (ROWS, "last_seen", "its last seen is not"),
        ("optimizer.safetensors", "state", "its state is not"),
        ("dense.safetensors", "dense.w", "dense.w is not"),
    ],
)
def test_whatever_else_of_a_base_differs_is_found_too(path: Path, name: str, tensor: str, words: str) -> None:
    def change(arrays: dict) -> None:
        arrays[tensor].reshape(-1)[0] += 1

    forge(newest_base(path), name, change)
    wrong = look(path, deep=True).errors
    assert any(finding.file == f"{newest_base(path).name}/{name}" and words in finding.what for finding in wrong)


def test_a_base_whose_rows_break_the_rules_is_found_without_replaying(path: Path) -> None:
    def exchange(arrays: dict) -> None:
        for tensor in ("mixed", "id", "feature"):
            arrays[tensor][[2, 3]] = arrays[tensor][[3, 2]]

    forge(newest_base(path), ROWS, exchange)
    assert any("order of mixed keys" in finding.what for finding in look(path).errors)


def test_a_base_that_is_no_version_of_the_log_is_found(path: Path) -> None:
    folder = newest_base(path)
    manifest = read_base_manifest(folder)
    (folder / MANIFEST).write_bytes(encode_checksummed_json(msgspec.structs.replace(manifest, checksum=77)))
    assert any("is not the one that a base" in finding.what for finding in look(path).errors)


@pytest.mark.parametrize("name", ["notes.txt", "base-old", segment_name(3, 0), f"{base_name(1 << 32)}/notes.txt"])
def test_a_file_without_an_owner_is_found(path: Path, name: str) -> None:
    (path / name).write_text("mine")
    (wrong,) = look(path).errors
    assert wrong.file == name
    assert "remove it" in str(wrong)


def test_what_this_system_leaves_behind_has_an_owner(path: Path) -> None:
    for name in (
        "broker.json",
        "simulator.json",
        "compactor.lock",
        ".tmp-base-00000000004294967300-7",
        "status-0000000001.json",
    ):
        (path / name).write_text("{}")
    (path / "commands").mkdir()
    assert look(path).errors == []


def test_bytes_of_a_replaced_trainer_are_noted_and_no_damage(log: WriterLog) -> None:
    ghost = log.open()
    put(ghost, 1, fingerprint=PRINT)
    ghost.sync()
    with log.writer(take_over=True) as writer:
        put(writer, 2, fingerprint=PRINT)
        writer.sync()
        with segments(log.path)[0].open("ab") as file:
            file.write(b"the ghost goes on")
        (log.path / segment_name(1, 7)).write_bytes(b"and on")
        findings = look(log.path)
    assert findings.errors == []
    notes = [str(finding) for finding in findings.all if finding.level == "note"]
    assert any("behind the seal" in note for note in notes)
    assert any("left by a replaced trainer" in note for note in notes)
    log.kill(ghost)


def test_positions_go_back_only_by_order_or_at_a_start(log: WriterLog) -> None:
    def at(offset: int, **changes) -> VersionMeta:
        positions = {"clicks/0": {"topic_id": "t", "offset": offset}}
        return VersionMeta(fingerprint=PRINT, positions=positions, **changes)

    with log.writer() as writer:
        for meta in (at(5), at(9), at(4, restores=1 << 32), at(6)):
            writer.append(meta, {})
    with log.writer() as writer:
        writer.append(at(2), {})
        writer.sync()
        findings = look(log.path)
        assert findings.errors == []
        assert any("went back from 6 to 2, at the start" in finding.what for finding in findings.all)
        writer.append(at(1), {})
        writer.append(VersionMeta(fingerprint=PRINT, positions=at(1).positions, expiry_cutoffs={"1": 5}), {})
        writer.append(VersionMeta(fingerprint=PRINT, positions=at(1).positions, expiry_cutoffs={"1": 4}), {})
        writer.sync()
        what = [finding.what for finding in look(log.path).errors]
    assert len(what) == 2
    assert "clicks/0 went back from 2 to 1" in what[0]
    assert "horizon of feature 1 went back" in what[1]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"rows.id": np.zeros(1, np.int64)}, "rows lack a column"),
        (row_tensors({(0, 1): (1.0, 1)}) | {"rows.count": np.zeros(2, np.int64)}, "several lengths"),
        (row_tensors({(7, 1): (1.0, 1)}), "not in the schema"),
        ({"forgotten.feature": np.zeros(2, np.uint16), "forgotten.id": np.zeros(2, np.int64)}, "name a key twice"),
        (row_tensors({(0, 1): (1.0, 1)}) | {"rows.value": np.zeros((1, 3), np.float32)}, "rows of width"),
    ],
)
def test_a_version_that_says_nonsense_under_a_right_checksum_is_found(log: WriterLog, tensors, words: str) -> None:
    with log.writer() as writer:
        writer.append(VersionMeta(fingerprint=PRINT), tensors)
        writer.sync()
        (wrong,) = look(log.path).errors
    assert words in wrong.what


def test_a_log_stays_sound_while_trainer_and_merger_work(log: WriterLog) -> None:
    with log.writer(segment_bytes=1 << 16) as writer:
        made = RandomVersions(log, writer)
        for _ in range(6):
            made.write(30)
            made.compact()
            apply_retention(log.directory, 2)
            assert look(log.path, deep=True).errors == []


def test_where_a_log_is_not_there_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no log"):
        look(tmp_path / "nowhere")


def test_a_start_that_died_is_no_damage(path: Path) -> None:
    (path / claim_name(3)).touch()
    findings = look(path)
    assert findings.errors == []
    assert any("epoch 3 is claimed and has sealed nothing" in finding.what for finding in findings.all)


def test_the_json_of_a_finding_names_everything(path: Path) -> None:
    (path / "notes.txt").touch()
    finding = json.loads(json.dumps([vars(finding) for finding in look(path).all]))[0]
    assert set(finding) == {"level", "what", "file", "offset", "consequence"}
