"""What `springtide check` says of bases that are kept: whether they fit into log_bytes."""

import pytest

from springtide.app.tools.diagnosis import check_kept_versions
from springtide.app.version_log.commands.pin import pin_version
from springtide.app.version_log.compact.merge import compact_log
from springtide.app.version_log.compact.retention import num_bytes, read_base_manifest
from springtide_client.format.records import VersionMeta
from tests.support.writer_log import WriterLog, config, put, row_tensors, sync_twice


@pytest.mark.parametrize(
    ("room", "state", "words"),
    [
        (40, "ok", "log_bytes has room for 40"),
        (10, "note", "room for 10: the oldest that keep names are deleted first"),
        (3, "problem", "4 of them are needed, 1 by pins: raise"),
    ],
)
def test_check_says_whether_kept_bases_fit(log: WriterLog, room: int, state: str, words: str) -> None:
    assert list(check_kept_versions(config(log.path))) == []
    with log.writer() as writer:
        writer.append(VersionMeta(), row_tensors({(0, i): (1.0, 1) for i in range(2000)}))
        sync_twice(writer)
        compact_log(log.directory, window_samples=10)
        put(writer, 1)
        writer.sync()
        pin_version(log.path, "latest", "one")
    base_bytes = num_bytes(read_base_manifest(log.directory.bases()[-1]))
    settings = config(log.path, keep={"hourly": 24, "daily": 7}, log_bytes=base_bytes * room * 4 // 3 + 4)
    (found,) = check_kept_versions(settings)
    assert found.state == state
    assert words in found.text
    assert "35 bases" in found.text
