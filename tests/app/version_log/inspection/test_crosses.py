"""What a version has learned of two ids together is found by the rows that a reader of a sample finds."""

import json
from pathlib import Path

import numpy as np
import pytest

from springtide.app.cli import main
from springtide.app.errors import UserError
from springtide.app.version_log.compact.base_writer import BaseImage, TableImage, write_base
from springtide.app.version_log.inspection.crosses import find_cross, live_pairs, wide_parameters
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import VersionImage
from springtide.app.version_log.write.writer import LogWriter
from springtide_client.features import Features
from springtide_client.format.records import VersionMeta
from springtide_client.keys import CROSSES, encode_id
from springtide_client.log.base import ModelIdentity, TableSpec
from springtide_client.log.directory import LogDirectory
from springtide_client.schema import Schema
from springtide_client.wide.fields import WideFields
from springtide_client.wide.parameters import WideParameters
from springtide_client.wide.slots import cross_slots, row_hashes, slots_of
from tests.support.config import write_config
from tests.support.writer_log import config

SCHEMA = Schema(labels=("click", "buy"), categorical=("user_id", "genre"), dense=("age",))
SETTINGS = {"name": "tiny", "schema": {name: getattr(SCHEMA, name) for name in ("labels", "categorical", "dense")}}
MAIN = TableSpec(dim=2, state_width=1 + 9, wide_width=9, seed=1, init_scale=0.1)
PAIRS = TableSpec(dim=4, state_width=0, seed=1, init_scale=0.0, features=[CROSSES])
USER, WAR = 7, encode_id("war")[0]
BORN = {(0, USER): 12.0, (1, WAR): 40.0, (2, 0): 3.0}


@pytest.fixture(params=["a table of their own", "the main table"])
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> LogDirectory:
    """A log with the rows of a user, a genre and a bin, and the cross of the first two."""
    has_table = request.param != "the main table"
    monkeypatch.chdir(tmp_path)
    write_config(Path("springtide.toml"), SETTINGS)
    path = tmp_path / "var" / "tiny" / "log"
    begun = WideParameters.initial(WideFields.of(SCHEMA), 1, 2)
    learned = begun._replace(pair_gains_P=np.array([1.5, 4.0, 9.0]), pair_is_live_P=np.array([1, 1, 0], np.uint8))
    dense = [{f"dense.wide.{name}": array for name, array in part.named().items()} for part in (begun, learned)]
    with LogWriter.open(config(path), schema=SCHEMA) as writer:
        image = BaseImage(
            head=writer.first_base_head,
            schema=SCHEMA,
            table=TableImage(spec=MAIN),
            tables={"crosses": TableImage(spec=PAIRS)} if has_table else {},
            model=ModelIdentity(name="logistic"),
            meta=VersionMeta(fingerprint=SCHEMA.fingerprint()),
            dense=dense[0],
            program=b"program",
        )
        write_base(path, image)
        writer.start_after(writer.first_base_head)
        state = np.zeros((3, 10), np.float32)
        state[:, -1] = list(BORN.values())
        rows = {
            "rows.feature": np.array([0, 1, 2], np.uint16),
            "rows.id": np.array([key[1] for key in BORN]),
            "rows.value": np.ones((3, 2), np.float32),
            "rows.state": state,
            "rows.count": np.array([1, 2, 3]),
            "rows.last_seen": np.array([10, 20, 30]),
        }
        cross = {
            "rows.feature": np.array([CROSSES], np.uint16),
            "rows.id": np.array([cross_of_a_sample()]),
            "rows.value": np.array([[0.5, 4, -0.25, 8]], np.float32),
            "rows.count": np.array([5]),
            "rows.last_seen": np.array([40]),
        }
        if has_table:
            rows |= {f"crosses/{name}": array for name, array in cross.items()}
        else:
            cross["rows.value"] = np.zeros((1, 2), np.float32)
            cross["rows.state"] = np.array([[9, 0.5, 4, 7, 7, -0.25, 8, 7, 7, 0]], np.float32)
            rows = {name: np.concatenate([array, cross[name]]) for name, array in rows.items()}
        writer.append(VersionMeta(fingerprint=SCHEMA.fingerprint()), rows | dense[1])
        writer.sync()
    return LogDirectory(path)


def cross_of_a_sample() -> int:
    """Return the id of the row that scoring a sample with this user and genre looks up."""
    features = Features(np.array([[USER, WAR]]), (), np.zeros((1, 1), np.float32))
    born = np.array(list(BORN.values()), np.float32)
    hashes = row_hashes(np.array([0, 1, 2]), np.array([USER, WAR, 0]), born)
    found = cross_slots(slots_of(SCHEMA, features), np.array([[0, 1]]), np.array([0]), hashes, born)
    return int(found.ids_C[0])


def image_of(directory: LogDirectory) -> VersionImage:
    index = LogIndex(directory)
    return VersionImage(index, index.numbers[-1])


@pytest.mark.parametrize("keys", [[("user_id", "7"), ("genre", "war")], [("genre", "war"), ("user_id", "7")]])
def test_a_cross_is_found_by_its_ids_in_either_order(directory: LogDirectory, keys: list[tuple[str, str]]) -> None:
    cross = find_cross(image_of(directory), keys)
    assert (cross.fields, cross.ids, cross.id) == (("user_id", "genre"), (USER, WAR), cross_of_a_sample())
    assert [tuple(vars(weight).values()) for weight in cross.weights] == [("click", 0.5, 4), ("buy", -0.25, 8)]
    assert (cross.count, cross.last_seen_ms, cross.is_live, cross.reason) == (5, 40, True, "")


def test_what_is_not_known_is_said(directory: LogDirectory) -> None:
    image = image_of(directory)
    assert "genre = " in find_cross(image, [("user_id", "7"), ("genre", "love")]).reason
    absent = find_cross(image, [("genre", "war"), ("age", "0")])
    assert (absent.ids, absent.is_live) == ((WAR, 0), False)
    assert "it has no row" in absent.reason
    for keys, words in (
        ([("user_id", "7"), ("user_id", "8")], "a cross is of two fields"),
        ([("user_id", "7"), ("town", "8")], "only user_id, genre, age"),
        ([("user_id", "7"), ("age", "old")], "age is a number"),
    ):
        with pytest.raises(UserError, match=words):
            find_cross(image, keys)


def test_live_pairs_are_listed_by_gain(directory: LogDirectory) -> None:
    image = image_of(directory)
    parameters = wide_parameters(image)
    assert parameters is not None
    pairs = live_pairs(SCHEMA, parameters)
    assert [(pair.fields, pair.gain) for pair in pairs] == [(("user_id", "age"), 4.0), (("user_id", "genre"), 1.5)]
    first = VersionImage(LogIndex(directory), LogIndex(directory).numbers[0])
    assert find_cross(first, [("user_id", "7"), ("genre", "war")]).reason


def test_the_command_prints_pairs_tables_and_a_cross(directory: LogDirectory, capsys: pytest.CaptureFixture) -> None:
    assert main(["versions", "show"]) == 0
    out = capsys.readouterr().out
    assert "crosses   2 pairs of fields, by gain: user_id x age (4), user_id x genre (1.5)" in out
    if "table     crosses" in out:
        assert "table     crosses: rows of 4 numbers; 0 rows of crosses in its base" in out
        assert "rows      1 rows written in table crosses" in out
    assert main(["versions", "show", "--cross", "user_id=7", "genre=war"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "user_id=7 x genre=war at version 1.1"
    assert [line.split()[:3] for line in lines[1:3]] == [["click", "weight", "0.5,"], ["buy", "weight", "-0.25,"]]
    assert "5 times" in lines[3]
    assert main(["versions", "show", "1.1", "--cross", "genre=war", "user_id=7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"][0]["information"] == 4
    assert main(["versions", "show", "--cross", "genre", "user_id=7"]) == 2
    assert "write FIELD=ID twice" in capsys.readouterr().err
