"""Versions are found by the names that people give them."""

import shutil

import pytest

from springtide.app.errors import UserError
from springtide.app.version_log.read.index import LogIndex
from springtide_client.errors import LogError
from tests.support.random_versions import RandomVersions
from tests.support.writer_log import WriterLog, put


def test_a_version_has_many_names(log: WriterLog) -> None:
    with log.writer() as writer:
        heads = [put(writer, value) for value in (1, 2, 3)]
        writer.sync()
        index = LogIndex(log.directory)
    first = 1 << 32
    assert index.numbers == [first, *(head.number for head in heads)]
    names = {"latest": 3, "-0": 3, "-1": 2, "-3": 0, "oldest": 0, "1.2": 2, str(first + 1): 1}
    assert {name: index.resolve(name) - first for name in names} == names
    assert index.head(heads[1].number) == heads[1]
    assert index.head(first).checksum == first


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("-4", "holds only 4 versions"),
        ("1.9", "from 1.0 to 1.3"),
        ("2.1", "is not in the log"),
        (str((2 << 32) + 1), "version 2.1 is not in the log"),
        ("newest", "write latest"),
        ("0", "write latest"),
        ("1.", "write latest"),
        ("1.²", "write latest"),
        ("", "write latest"),
    ],
)
def test_a_name_of_no_version_is_an_error_that_says_what_to_write(log: WriterLog, name: str, words: str) -> None:
    with log.writer() as writer:
        for value in (1, 2, 3):
            put(writer, value)
        writer.sync()
        with pytest.raises(UserError, match=words):
            LogIndex(log.directory).resolve(name)


def test_a_folder_without_a_log_is_a_user_error(tmp_path) -> None:
    with pytest.raises(UserError, match="there is no log"):
        LogIndex(WriterLog(tmp_path / "nothing").directory)


def test_versions_of_all_epochs_and_bases_without_records_are_known(log: WriterLog) -> None:
    with log.writer() as writer:
        random_log = RandomVersions(log, writer)
        random_log.write(3)
        base = random_log.compact()
    with log.writer() as writer:
        last = put(writer, 5)
        writer.sync()
        index = LogIndex(log.directory)
    assert index.bases == [1 << 32, base.head.number]
    assert index.resolve("latest") == last.number == (2 << 32) + 1
    assert index.base_before(last.number).head == base.head
    assert index.base_before(base.head.number - 1).head.number == 1 << 32
    assert [entry.number for entry in index.entries_between(base.head.number, last.number)][-1] == last.number


def test_a_base_deleted_meanwhile_is_a_log_error(log: WriterLog) -> None:
    with log.writer():
        index = LogIndex(log.directory)
    shutil.rmtree(log.directory.bases()[0])
    for read in (index.head, index.meta):
        with pytest.raises(LogError, match="base-00000000004294967296 was deleted"):
            read(1 << 32)


def test_a_record_head_has_meta_and_shapes_without_reading_tensors(log: WriterLog) -> None:
    with log.writer() as writer:
        put(writer, 7, samples_trained=70)
        writer.sync()
        index = LogIndex(log.directory)
    entry = index.entries[0]
    summary = entry.read_summary()
    assert summary.meta == entry.read().meta
    assert (summary.num_rows, summary.num_forgotten, summary.meta.samples_trained) == (1, 0, 70)
    assert summary.shapes == {name: array.shape for name, array in entry.read().tensors().items()}
