"""deploy/docs/log-format.md agrees with the code."""

import re
from pathlib import Path

import pytest

from springtide.app.version_log.compact.compactor import LOCK_NAME
from springtide.app.version_log.read.corruption import REPORT_NAME
from springtide.app.version_log.read.replay_state import MAX_COMMANDS
from springtide.app.version_log.write.epoch import EPOCHS_RETAINED
from springtide_client.format.records import HEADER, MAGIC, VersionMeta
from springtide_client.format.tensors import DTYPES
from springtide_client.log import base
from springtide_client.log.base import OPTIMIZER, ROWS, BaseManifest, optimizer_files, rows_files
from springtide_client.log.listing import (
    LogManifest,
    base_name,
    claim_name,
    manifest_name,
    segment_name,
    shard_segment_name,
    state_name,
)

TEXT = (Path(__file__).parents[3] / "deploy" / "docs" / "log-format.md").read_text()


def first_column(heading: str) -> list[str]:
    """Return every `word` of the first column of the table whose first row starts with the heading."""
    lines = TEXT.split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    words = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        words += re.findall(r"`([^`]+)`", line.split("|")[1])
    return words


@pytest.mark.parametrize(
    ("section", "struct"), [("The meta is a JSON object", VersionMeta), ("## Manifest of an epoch", LogManifest)]
)
def test_the_keys_of_a_json_object_are_those_of_its_struct(section: str, struct: type) -> None:
    table = TEXT[TEXT.index(section) :].split("\n\n")[1]
    words = [word for line in table.split("\n")[2:] for word in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert sorted(words) == sorted(struct.__struct_encode_fields__)


def test_the_keys_of_a_base_manifest_are_those_of_its_struct() -> None:
    assert sorted(first_column("key of `manifest.json`")) == sorted(BaseManifest.__struct_encode_fields__)


def test_the_files_of_a_base_are_those_of_the_client() -> None:
    files = [base.MANIFEST, ROWS, OPTIMIZER, base.DENSE, base.STATE, base.SKETCH, base.ID_STRINGS, base.ITEMS]
    files += [*rows_files("NAME"), *optimizer_files("NAME")]
    files += [rows_files("", 4)[1], optimizer_files("", 4)[1], rows_files("NAME", 4)[1], optimizer_files("NAME", 4)[1]]
    assert sorted(first_column("file")) == sorted([*files, base.MODEL, base.ONNX])


def test_the_names_in_the_folder_are_those_of_the_code() -> None:
    digits = {"E": "0" * 9 + "7", "R": "0" * 4 + "7", "C": "0" * 5 + "7", "N": "0" * 19 + "7"}
    names = [re.sub(r"E{10}|R{5}|C{6}|N{20}", lambda match: digits[match[0][0]], name) for name in first_column("name")]
    folders = (f"{base_name(7)}/", f"{state_name(7)}/")
    for name in (
        claim_name(7),
        manifest_name(7),
        segment_name(7, 7),
        shard_segment_name(7, 7, 7),
        *folders,
        LOCK_NAME,
        REPORT_NAME,
    ):
        assert name in names


def test_the_record_header_has_the_documented_layout() -> None:
    table = TEXT[TEXT.index("| offset | size | field |") :].split("\n\n")[0].split("\n")[2:]
    sizes = [int(line.split("|")[2]) for line in table]
    offsets = [int(line.split("|")[1]) for line in table]
    assert offsets == [sum(sizes[:count]) for count in range(len(sizes))]
    assert sum(sizes) == HEADER.size == 48
    assert f"`{MAGIC.decode()}`" in table[0]


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    listed = re.search(r"dtypes: ([A-Z0-9, ]+)\.", TEXT)
    assert listed is not None
    assert listed[1].split(", ") == list(DTYPES)
    assert f"the newest {MAX_COMMANDS:,} of all versions" in TEXT
    assert TEXT.count(f"| {EPOCHS_RETAINED} newer epochs |") == 2
