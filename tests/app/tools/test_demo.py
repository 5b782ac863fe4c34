"""The demo as a user runs it: it becomes ready, shows its status, ends after its seconds, and resumes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from springtide.app.config.load import load_config
from springtide.app.errors import UserError
from springtide.app.tools import demo as demo_module
from springtide.app.tools.demo import Demo, OutputFiles, check_fields, choose_port, demo_config_path
from springtide.app.tools.status_text import status_line, status_lines
from springtide.app.version_log.trainer_status import PartitionStatus, TrainerStatus
from tests.support.processes import IMPORT_PATH
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
COMMAND_SECONDS = 600.0


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "springtide", "demo", "--rate", "600", *arguments],
        cwd=folder,
        env=dict(os.environ) | {"PYTHONPATH": IMPORT_PATH, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a demo has run, and another may go on."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo_that_ended(folder: Path) -> dict[str, Any]:
    """What a demo of 3 seconds said last."""
    demo = start(folder, "--seconds", "3")
    out, err = demo.communicate(timeout=COMMAND_SECONDS)
    assert demo.returncode == 0, err
    assert "the dashboard: http://127.0.0.1:" in err
    [line] = out.splitlines()
    status: dict[str, Any] = json.loads(line)
    return status


def test_it_ends_after_its_seconds_with_one_json_line(demo_that_ended: dict[str, Any]) -> None:
    assert demo_that_ended["samples_trained"] > 0
    assert 0.7 < demo_that_ended["simulator"]["best_auc"] < 0.9


def test_a_second_demo_resumes_and_ctrl_c_stops_it_with_a_durable_last_version(
    folder: Path, demo_that_ended: dict[str, Any]
) -> None:
    first = demo_that_ended
    demo = start(folder)
    assert demo.stderr is not None
    for line in demo.stderr:
        if "the dashboard" in line:
            break
    log = folder / "var" / "demo" / "log"
    wait_until(lambda: newest_status(log).get("samples_trained", 0) > first["samples_trained"], "learning")
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=COMMAND_SECONDS)
    assert demo.returncode == 0, err
    status = newest_status(log)
    assert status["epoch"] == first["epoch"] + 1
    assert status["clean_shutdown"] is True
    assert status["durable_version"] == status["version"]
    assert not (log / "broker.json").exists()
    assert {path.name for path in (folder / "var").iterdir()} == {"demo"}


class Clock:
    """A fake clock; its `wait` advances it, and returns True once `stop_at` seconds have passed."""

    def __init__(self, stop_at: float) -> None:
        self.now, self._stop_at = 100.0, 100.0 + stop_at

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now >= self._stop_at


@pytest.mark.parametrize(("seconds", "ends_after"), [(None, 1000), (40.0, 40), (3.0, 3)])
def test_it_runs_until_it_is_stopped_or_for_its_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None, ends_after: float
) -> None:
    monkeypatch.chdir(tmp_path)
    clock, children = Clock(1000.0), MagicMock()
    monkeypatch.setattr(demo_module, "BrokerSupervisor", children)
    monkeypatch.setattr(demo_module, "Supervisor", children)
    monkeypatch.setattr(demo_module, "time", clock)
    monkeypatch.setattr(Demo, "_get", lambda self, path: {"samples_trained": 1})
    monkeypatch.setattr(demo_module, "status_line", str)
    Demo(None, rate=None, port=None, debug=False).run(clock, seconds)  # type: ignore[arg-type]
    assert clock.now - 100.0 == pytest.approx(ends_after, abs=1)


def newest_status(log: Path) -> dict[str, Any]:
    paths = sorted(log.glob("status-*.json"))
    status: dict[str, Any] = json.loads(paths[-1].read_text()) if paths else {}
    return status


def test_the_demo_of_a_join_learns_clicks_that_come_in_a_topic_of_their_own(tmp_path: Path) -> None:
    demo = start(tmp_path, "--join", "--seconds", "3")
    out, err = demo.communicate(timeout=COMMAND_SECONDS)
    assert demo.returncode == 0, err
    status = json.loads(out)
    assert status["samples_trained"] > 0
    assert set(status["positions"]) == {"clicks/0", "impressions/0"}
    assert status["join"]["watermark_ms"] > 0
    assert 0.2 < status["scores"]["whole"]["label_rate"] < 0.45
    assert {path.name for path in (tmp_path / "var").iterdir()} == {"demo-join"}


def test_the_demo_of_a_join_has_a_configuration_of_its_own() -> None:
    with pytest.raises(UserError, match="--join has a configuration of its own"):
        Demo(demo_config_path(), rate=None, port=None, debug=False, join=True)


def test_the_built_in_configuration_fits_the_simulator(tmp_path: Path) -> None:
    check_fields(load_config(demo_config_path()))
    strange = tmp_path / "strange.toml"
    strange.write_text(demo_config_path().read_text().replace('"segment"', '"passport"'))
    with pytest.raises(UserError, match="does not fit the simulator's clicks"):
        check_fields(load_config(strange))


def test_a_taken_port_is_replaced_by_a_free_one() -> None:
    port = choose_port("127.0.0.1", 0)
    import socket

    with socket.create_server(("127.0.0.1", port)):
        other = choose_port("127.0.0.1", port)
        with pytest.raises(UserError, match=f"port {port} is taken"):
            Demo(None, rate=None, port=port, debug=False)
    assert other not in (0, port)


@pytest.mark.parametrize("port", [99999, 0, -1])
def test_an_impossible_port_is_refused_before_anything_starts(port: int) -> None:
    with pytest.raises(UserError, match=f"--port must be in 1..65535, not {port}"):
        Demo(None, rate=None, port=port, debug=False)


def test_the_status_line_has_dashes_for_missing_numbers() -> None:
    assert status_line({}).startswith("0 samples  0/s  AUC - of -  logloss -  fresh -/- ms  lag 0")
    line = status_line(
        {
            "samples_trained": 61234,
            "samples_per_second": 2999.6,
            "scores": {"window": {"auc": 0.7912, "logloss": 0.5217}},
            "freshness_ms": {"p50": 310.4, "p99": 801.0},
            "positions": {"clicks/0": {"lag": 12}, "clicks/1": {"lag": None}},
            "trainer": "catching_up",
            "reason": "12 behind",
            "simulator": {"best_auc": 0.8213},
        }
    )
    assert line == (
        "61,234 samples  3,000/s  AUC 0.791 of 0.821  logloss 0.522  fresh 310/801 ms  lag 12  catching_up: 12 behind"
    )
    rate, score = {"level": "large"}, {"level": "none"}
    features = [{"name": "age", "level": "large"}, {"name": "country", "level": "large"}]
    drift = {"level": "large", "labels": {"click": {"label_rate": rate, "score": score}}, "features": features}
    assert status_line({"scores": {"drift": drift}}).endswith("lag 0  drift: rate of click, age")


def test_the_last_lines_of_a_run_say_what_was_learned() -> None:
    status = TrainerStatus(
        name="shop",
        version=(3 << 32) + 5,
        samples_trained=61_234,
        positions={"clicks/0": PartitionStatus(10, 10, 12, 2)},
        dead_letters={"bad_json": 3},
    )
    lines = list(status_lines(status.to_json() | {"simulator": {"best_auc": 0.8213}}))
    assert lines == [
        "shop: version 3.5, trainer stopped",
        "  learned   61,234 samples, 0/s at the end, of clicks/0, 2 records behind the end",
        "  dead      3 bad_json",
        "  scores    all samples: AUC -, logloss -, calibration -",
        "  scores    the newest: AUC - of at best 0.8213, logloss -, calibration -",
        "  rows      none",
    ]
    fresh = {"freshness_ms": {"p50": 120.4, "p99": 310.0}}
    assert list(status_lines(fresh))[-1] == "  fresh     p50 120 ms, p99 310 ms from a record to its served version"
    assert next(status_lines({})) == ": no version, trainer "


def test_output_of_children_is_kept_in_bounded_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("springtide.app.tools.demo.MAX_OUTPUT_BYTES", 100)
    output = OutputFiles(tmp_path / "output")
    for number in range(100):
        output.append("train", f"line {number}")
    assert output.path("train").read_text().endswith("line 99\n")
    assert sum(path.stat().st_size for path in (tmp_path / "output").iterdir()) < 250
