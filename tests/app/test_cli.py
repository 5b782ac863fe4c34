"""The command line: a quick start, and one line and an exit code for every mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from springtide.app.cli import COMMANDS, main
from tests.support.processes import IMPORT_PATH

ROOT = Path(__file__).parents[2]
CONFIG = 'name = "tiny"\n[schema]\nlabel = "click"\ncategorical = ["user_id"]\n'


def springtide(folder: Path, *arguments: str, config: str | None = CONFIG) -> subprocess.CompletedProcess[str]:
    if config is not None:
        (folder / "springtide.toml").write_text(config)
    return subprocess.run(
        [sys.executable, "-m", "springtide", *arguments],
        cwd=folder,
        env=dict(os.environ) | {"PYTHONPATH": IMPORT_PATH, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_help_names_every_command_and_imports_nothing_heavy(tmp_path: Path) -> None:
    done = springtide(tmp_path, "--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"    {command} " in done.stdout
    heavy = ("torch", "numpy", "kafka", "msgspec")
    code = "import sys; from springtide.app.cli import build_parser; build_parser();"
    code += f"print([name for name in {heavy} if name in sys.modules])"
    modules = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert modules.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["no command 'trian'", "did you mean train?"]),
        ([], ["COMMAND"]),
        (["train", "--untilend"], ["--untilend", "(see: springtide train --help)"]),
        (["versions", "list", "--jsn"], ["--jsn", "(see: springtide versions list --help)"]),
        (["train", "--config", "nowhere.toml"], ["there is no nowhere.toml"]),
        (["replay", "nowhere.csv"], ["there is no file nowhere.csv"]),
        (["replay", "springtide.toml"], [".csv", ".parquet"]),
        (["replay", "x.csv", "--rate", "0"], ["--rate must be a number above 0, not 0"]),
        (["evaluate", "nowhere.csv"], ["there is no file nowhere.csv"]),
        (["evaluate", "springtide.toml"], [".csv", ".parquet"]),
        (["evaluate", "x.csv", "--limit", "0"], ["--limit 0"]),
        (["evaluate", "x.csv", "--set", "train.batchsize=3"], ["did you mean batch_size?"]),
        (["evaluate", "x.csv", "--config", "nowhere.toml"], ["there is no nowhere.toml"]),
        (["evaluate", "x.csv", "--budget", "10m"], ["--budget goes with --search"]),
        (["evaluate", "x.csv", "--search"], ["at least 2,000 rows"]),
        (["evaluate", "x.csv", "--search", "--budget", "ten"], ["--budget ten", "10m"]),
        (["evaluate", "x.csv", "--search", "--by", "user_id"], ["--by does not go with --search"]),
        (["evaluate", "x.csv", "--search", "--write", "x.csv"], ["exists"]),
        (["evaluate", "x.csv", "--compare", "springtide.toml", "nowhere.toml"], ["there is no nowhere.toml"]),
        (["evaluate", "empty.csv"], ["there is no row to learn"]),
        (["forget", "--key", "user_id"], ["FEATURE=ID"]),
        (["forget", "--key", "user_id="], ["--key user_id=", "no id after ="]),
        (["forget", "--key", "item=3"], ["no feature 'item'"]),
        (["forget", "--key", "user_id=3"], ["no log", "nothing was learned"]),
        (["versions", "rollback"], ["required", "version"]),
        (["versions", "rollback", "1.1"], ["there is no log"]),
        (["forget"], ["nothing to forget", "--file"]),
        (["forget", "--file", "nowhere.txt"], ["nowhere.txt cannot be read"]),
        (["forget", "--file", "springtide.toml"], ["springtide.toml, line 1", "no feature"]),
        (["train", "--from-offset", "clicks=3"], ["TOPIC/PARTITION=OFFSET"]),
        (["train", "--from-offset", "earliest", "--from-offset", "clicks/0=3"], ["all partitions"]),
        (["train", "--from-timestamp", "yesterday"], ["milliseconds since 1970"]),
        (["train", "--from-timestamp", "5", "--from-offset", "latest"], ["exclude each other"]),
        (["versions", "list"], ["there is no log"]),
        (["versions", "diff", "-3", "latest"], ["there is no log"]),
        (["versions", "diff", "latest"], ["VERSION"]),
        (["versions", "export", "model.bin"], ["--format", ".safetensors"]),
        (["versions", "export", "nowhere/model.pt"], ["no folder nowhere"]),
        (["versions", "show", "1.1", "--key", "user_id=3"], ["not both"]),
        (["demo"], ["does not fit the simulator's clicks"]),
        (["bench", "train.e3e"], ["no benchmark", "train.e2e"]),
    ],
)
def test_a_user_error_is_one_line_and_exit_code_2(
    tmp_path: Path,
    arguments: list[str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    config = CONFIG
    if arguments[:1] == ["demo"]:
        arguments = [*arguments, "--config", "springtide.toml"]
        config = CONFIG.replace("user_id", "passport")
    Path("springtide.toml").write_text(config)
    Path("x.csv").write_text("user_id,click\n7,0\n")
    Path("empty.csv").write_text("user_id,click\n")
    assert main(arguments) == 2
    said = capfd.readouterr().err
    assert len(said.strip().splitlines()) == 1
    for word in words:
        assert word in said


@pytest.mark.parametrize("arguments", [["trian"], ["train", "--untilend"], ["versions", "list"]])
def test_a_process_exits_with_the_code_and_the_line_of_its_command(tmp_path: Path, arguments: list[str]) -> None:
    done = springtide(tmp_path, *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_forget_submits_a_command_that_waits_for_a_trainer(tmp_path: Path) -> None:
    log = tmp_path / "var" / "tiny" / "log"
    log.mkdir(parents=True)
    (log / "status-0000000001.json").write_text('{"clean_shutdown": true, "updated_ms": 1}')
    done = springtide(tmp_path, "forget", "--key", "user_id=3", "--key", "user_id=a=b")
    assert done.returncode == 0
    assert "no version yet" in done.stdout
    assert "the next trainer will execute it" in done.stdout
    (order,) = (log / "commands").glob("*.json")
    body = json.loads(order.read_text())
    assert (body["kind"], order.stem in done.stdout) == ("forget", True)
    assert body["keys"] == [{"feature": "user_id", "id": "3"}, {"feature": "user_id", "id": "a=b"}]


@pytest.mark.parametrize("command", [["train"], ["replay", "clicks.csv"], ["simulate"]])
def test_an_embedded_source_without_its_broker_is_one_line_and_exit_code_1(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "clicks.csv").write_text("user_id,click\n1,0\n")
    done = springtide(tmp_path, *command)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "embedded broker is not running" in done.stderr
    assert "springtide run" in done.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = springtide(tmp_path, "--debug", "train", "--config", "nowhere.toml")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_check_reports_an_unreachable_broker_and_how_to_fix_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = '[source]\nbootstrap_servers = "127.0.0.1:1"\n'
    Path("springtide.toml").write_text(CONFIG.replace("[schema]", f"{source}[schema]"))
    assert main(["check"]) == 1
    problems = [line for line in capfd.readouterr().out.splitlines() if line.startswith("problem")]
    assert len(problems) == 1
    assert "127.0.0.1:1" in problems[0]
    assert "start the broker" in problems[0]


def test_check_succeeds_without_problems(tmp_path: Path) -> None:
    done = springtide(tmp_path, "check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "springtide run" in done.stdout
