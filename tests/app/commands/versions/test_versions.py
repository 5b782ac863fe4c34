"""`springtide versions` as people use it: what it prints, and one clear line for whatever is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from springtide.app.cli import main
from springtide.app.commands.processes import find_version
from springtide.app.version_log.inspection.crosses import find_cross
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.version_range import VersionImage
from springtide_client.keys import CROSSES, hash_string
from springtide_client.log.directory import LogDirectory
from tests.app.training.random_clicks import make_batch
from tests.app.training.test_changed_settings import LAYERS, learn
from tests.support.config import config_in, write_config
from tests.support.damage import flip
from tests.support.random_versions import RandomVersions
from tests.support.writer_log import WriterLog

CONFIG = {"name": "tiny", "schema": {"label": "click", "categorical": ["user_id", "item_id"]}}
TEXT = "café 3"


@pytest.fixture
def log(tmp_path, monkeypatch) -> WriterLog:
    """A log of a dozen versions and two bases, in a folder with its configuration."""
    monkeypatch.chdir(tmp_path)
    write_config(Path("springtide.toml"), CONFIG)
    log = WriterLog(tmp_path / "var" / "tiny" / "log")
    texts = {
        "texts.feature": np.array([1], np.uint16),
        "texts.id": np.array([hash_string(TEXT.encode())], np.int64),
        "texts.offsets": np.array([0, len(TEXT.encode())], np.int64),
        "texts.bytes": np.frombuffer(TEXT.encode(), np.uint8),
    }
    with log.writer() as writer:
        made = RandomVersions(log, writer)
        made.write(6)
        made.append({(1, hash_string(TEXT.encode())): (40.0, 9_000)}, [], texts)
        made.compact()
        made.append({(1, hash_string(TEXT.encode())): (43.0, 9_000)}, [], {"dense.w": np.ones(3, np.float32)})
        made.write(2)
        writer.sync()
    return log


def run(capsys, *arguments: str, code: int = 0) -> str:
    """Run `springtide versions`; return its stdout, or if it fails its one line on stderr."""
    returned = main(["versions", *arguments])
    out, err = capsys.readouterr()
    assert returned == code, out + err
    if code:
        assert len(err.strip().splitlines()) == 1
        assert err.startswith("springtide: ")
    return out if code == 0 else err


def test_list_shows_the_newest_versions_and_the_bases(log, capsys) -> None:
    lines = run(capsys, "list", "--limit", "3").splitlines()
    assert [line.split()[0] for line in lines] == ["version", "1.9", "1.10", "1.11", "3"]
    assert lines[-1].endswith("1.0 to 1.11; bases: 1.0, 1.7")
    before = json.loads(run(capsys, "list", "--limit", "2", "--before", "1.8", "--json"))
    assert [(line["name"], line["is_base"]) for line in before] == [("1.6", False), ("1.7", True)]
    assert run(capsys, "list", "--before", "oldest").splitlines()[-1].startswith("0 of 12 versions")


def test_show_prints_one_version(log, capsys) -> None:
    out = run(capsys, "show")
    assert out.startswith("version 1.11 (number ")
    assert "learned   11 samples" in out
    document = json.loads(run(capsys, "show", "-4", "--json"))
    assert (document["name"], document["tensors"]["texts.id"], document["is_base"]) == ("1.7", [1], True)


def test_show_key_prints_the_history_of_a_string_id(log, capsys) -> None:
    out = run(capsys, "show", "--key", f"item_id={TEXT}")
    lines = out.splitlines()
    assert lines[0] == f"item_id={TEXT} (id {hash_string(TEXT.encode())}), since version 1.0"
    assert [line.split()[3] for line in lines[2:4]] == ["created", "written"]
    assert "it is in base 1.7" in out
    assert "the oldest file that holds it, of 3: seg-0000000001-000000.log" in out
    by_number = json.loads(run(capsys, "show", "--key", f"item_id={hash_string(TEXT.encode())}", "--json"))
    assert by_number["id_string"] == TEXT
    assert [event["kind"] for event in by_number["events"]] == ["created", "written"]
    assert by_number["events"][1]["move"] == pytest.approx(3 * 2**0.5)


def test_diff_prints_rows_moves_parameters_and_the_stream(log, capsys) -> None:
    out = run(capsys, "diff", "-4", "latest", "--top", "100")
    assert out.splitlines()[0].split()[:2] == ["from", "1.7"]
    assert f"  {TEXT}  (count +3)" in out
    assert "dense: 1 of 1 parameters and buffers changed" in out
    document = json.loads(run(capsys, "diff", "latest", "1.7", "--json"))  # in either order
    assert (document["from"]["name"], document["to"]["name"], document["versions"]) == ("1.7", "1.11", 4)
    assert set(document["features"]) <= {"user_id", "item_id"}
    assert TEXT in [move["id_string"] for move in document["moves"]]
    assert document["rows"]["changed"] == sum(counts["changed"] for counts in document["features"].values())


def test_export_prints_what_it_wrote(log, capsys) -> None:
    assert run(capsys, "export", "rows.parquet", "--version", "-1").startswith("rows.parquet: version 1.10 as parquet")
    assert "--force" in run(capsys, "export", "rows.parquet", code=2)
    assert "as torch" in run(capsys, "export", "--format", "torch", "rows.parquet", "--force")
    assert json.loads(run(capsys, "export", "rows.arrow", "--json"))["file"] == "rows.arrow"
    assert "only user_id, item_id" in run(capsys, "export", "x.arrow", "--feature", "age", code=2)


def test_verify_prints_what_is_wrong_or_that_the_log_is_valid(log, capsys) -> None:
    assert "no errors" in run(capsys, "verify", "--deep").splitlines()[-1]
    (log.path / "notes.txt").touch()
    assert main(["versions", "verify"]) == 1
    out, err = capsys.readouterr()
    assert "error  notes.txt: Springtide makes no file of this name; no reader uses it: remove it" in out
    assert out.splitlines()[-1].startswith("1 error")
    assert err == ""
    assert main(["versions", "verify", "--json"]) == 1
    assert [finding["file"] for finding in json.loads(capsys.readouterr().out) if finding["level"] == "error"] == [
        "notes.txt"
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "9.9"], "goes from 1.0 to 1.11"),
        (["show", "newest"], "write latest"),
        (["show", "--key", "item_id"], "write FEATURE=ID"),
        (["show", "--key", "age=3"], "only user_id, item_id"),
        (["show", "--limit", "0"], "--limit 0: at least 1"),
        (["list", "--limit", "0"], "--limit 0: at least 1"),
        (["diff", "1.1", "1.2", "--top", "-1"], "--top -1: at least 0"),
        (["export", "model.bin"], "choose a format"),
    ],
)
def test_a_usage_error_is_one_line_that_says_what_to_do(log, capsys, arguments: list[str], words: str) -> None:
    assert words in run(capsys, *arguments, code=2)


def test_a_file_deleted_by_the_compactor_meanwhile_is_a_clear_error(log, capsys, monkeypatch) -> None:
    def retire(index: LogIndex, number: int) -> None:
        raise FileNotFoundError(2, "No such file or directory", f"base-{number}")

    monkeypatch.setattr(LogIndex, "meta", retire)
    assert "was deleted by the compactor while it was read: run the command again" in run(
        capsys, "diff", "1.1", "1.2", code=1
    )


def test_a_corrupt_record_points_to_the_verify_command(log, capsys) -> None:
    flip(next(log.path.glob("seg-*")))
    for arguments in (["diff", "oldest", "latest"], ["show", "--key", "item_id=1"], ["export", "all.arrow"]):
        if arguments[0] == "export":
            arguments = [*arguments, "--version", "1.7"]
            (log.path / "base-00000000004294967303" / "manifest.json").unlink()
        assert "`springtide versions verify`" in run(capsys, *arguments, code=1)
    assert not Path("all.arrow").exists()


def test_a_pin_is_made_shown_used_and_removed(log, capsys) -> None:
    assert run(capsys, "pin", "1.4", "good").startswith("good pins version 1.4: ")
    lines = run(capsys, "list").splitlines()
    assert [line.split()[0] for line in lines if line.endswith("  good")] == ["1.4"]
    assert lines[-1] == "pins: good 1.4"
    assert "pinned as good)" in run(capsys, "show", "good").splitlines()[0]
    assert json.loads(run(capsys, "show", "good", "--json"))["pins"] == ["good"]
    assert run(capsys, "diff", "good", "latest").startswith("from  1.4")
    assert run(capsys, "export", "rows.arrow", "--version", "good").startswith("rows.arrow: version 1.4 as arrow")
    assert find_version(log.path, "good") == find_version(log.path, "1.4")
    assert "good pins version 1.4: unpin it" in run(capsys, "pin", "1.5", "good", code=2)
    assert run(capsys, "unpin", "good").startswith("good is removed: version 1.4")
    assert "no version is pinned as 'good'" in run(capsys, "unpin", "good", code=2)


def test_every_cross_of_a_batch_that_has_a_row_is_found_by_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_in(tmp_path, *LAYERS, {"model": {"wide": True}})
    learn(config)
    index = LogIndex(LogDirectory(config.log.path))
    image = VersionImage(index, index.numbers[-1])
    stored = {int(row_id) for rows in image.rows(CROSSES, with_values=False) for row_id in rows.id}
    batch = make_batch(3)  # the newest
    genres, found = batch.features.lists[0], []
    for sample, user in enumerate(batch.features.categorical_NC[:, 0].tolist()):
        if len(found) == 3:
            break
        for genre in genres.ids_M[genres.offsets[sample] : genres.offsets[sample + 1]].tolist()[:1]:
            cross = find_cross(image, [("user_id", str(user)), ("genres", str(genre))])
            assert (cross.id in stored) == bool(cross.weights), cross
            found += [(user, genre, cross)] * bool(cross.weights)
    assert found
    user, genre, cross = found[0]
    assert np.isfinite(cross.weights[0].weight)
    assert cross.weights[0].information > 0
    assert main(["versions", "show", "--cross", f"user_id={user}", f"genres={genre}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == cross.id
    assert main(["versions", "show"]) == 0
    assert "user_id x genres (" in capsys.readouterr().out
