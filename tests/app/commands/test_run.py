"""`springtide run`: everything up, a dead child restarted, all of it down within seconds."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from springtide.app.cli import COMMANDS
from springtide.app.serving.server import address
from springtide.app.serving.server.address import ServeError
from springtide.app.version_log.errors import LogBusyError
from springtide.app.version_log.write.trainer_lock import TrainerLock, wait_until_free
from tests.support.processes import IMPORT_PATH
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
COMMAND_SECONDS = 600.0
CONFIG = 'name = "tiny"\n[schema]\nlabel = "click"\ncategorical = ["user_id"]\n[table]\ndevice_bytes = "16MiB"\n'
CONFIG += "[train]\nmax_wait_seconds = 0.05\n[serve]\nport = 0\n"


def springtide(folder: Path, *arguments: str, err: Path) -> "subprocess.Popen[str]":
    with err.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "springtide", *arguments],
            cwd=folder,
            env=dict(os.environ) | {"PYTHONPATH": IMPORT_PATH, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )


def status(log: Path, epoch: int) -> dict[str, Any]:
    path = log / f"status-{epoch:010d}.json"
    told: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return told


def test_a_killed_trainer_is_restarted_and_all_processes_end_after_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "springtide.toml").write_text(CONFIG)
    (tmp_path / "clicks.csv").write_text("user_id,click\n" + "".join(f"{n % 50},{n % 2}\n" for n in range(400)))
    log = tmp_path / "var" / "tiny" / "log"
    run = springtide(tmp_path, "run", err=tmp_path / "run.txt")
    try:
        wait_until((log / "broker.json").exists, "the broker")
        replay = springtide(tmp_path, "replay", "clicks.csv", err=tmp_path / "replay.txt")
        replay.communicate(timeout=COMMAND_SECONDS)
        assert replay.returncode == 0, (tmp_path / "replay.txt").read_text()
        assert "400 messages into clicks" in (tmp_path / "replay.txt").read_text()
        wait_until(lambda: status(log, 1).get("samples_trained") == 400, "learning")
        wait_until(lambda: status(log, 1)["positions"]["clicks/0"]["committed"] == 400, "durability")

        os.kill(status(log, 1)["pid"], signal.SIGKILL)
        wait_until(lambda: status(log, 2).get("trainer") == "running", "a second trainer")
        assert status(log, 2)["samples_trained"] == 400
        assert run.poll() is None

        run.send_signal(signal.SIGINT)
        run.communicate(timeout=COMMAND_SECONDS)
    finally:
        run.kill()
        run.wait()
        assert run.stdout is not None
        run.stdout.close()
    said = (tmp_path / "run.txt").read_text()
    assert run.returncode == 0, said
    assert "train exited and will be restarted" in said
    assert "Traceback" not in said
    assert not (log / "broker.json").exists()
    assert status(log, 2)["clean_shutdown"] is True

    for arguments in (["list", "--config", "springtide.toml"], ["show"], ["verify"], ["export", "model.pt"]):
        looked = springtide(tmp_path, "versions", *arguments, err=tmp_path / "versions.txt")
        out, _ = looked.communicate(timeout=COMMAND_SECONDS)
        assert looked.returncode == 0, (tmp_path / "versions.txt").read_text()
        assert {"list": " 400 ", "show": "learned   400 samples", "verify": "ok ", "export": "model.pt"}[
            arguments[0]
        ] in out
    assert (tmp_path / "model.pt").stat().st_size > 1_000


def test_a_run_beside_another_trainer_ends_before_it_starts_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "springtide.toml").write_text(CONFIG + f'[log]\npath = "{tmp_path}/log"\n')
    (tmp_path / "log").mkdir()
    lock = TrainerLock.acquire(tmp_path / "log")
    monkeypatch.setattr("springtide.app.processes.signals.stop_on_signals", threading.Event)
    monkeypatch.setitem(wait_until_free.__kwdefaults__, "wait_seconds", 0.0)
    arguments = argparse.Namespace(config=str(tmp_path / "springtide.toml"), port=None, debug=False)
    with pytest.raises(LogBusyError, match=f"another trainer .pid {os.getpid()}. is writing"):
        COMMANDS["run"].run(arguments)
    assert not (tmp_path / "log" / "broker.json").exists()
    lock.release()


def test_a_run_whose_port_is_in_use_ends_before_it_starts_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "springtide.toml").write_text(CONFIG + f'[log]\npath = "{tmp_path}/log"\n')
    monkeypatch.setattr("springtide.app.processes.signals.stop_on_signals", threading.Event)
    monkeypatch.setitem(address.wait_until_free.__kwdefaults__, "wait_seconds", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        arguments = argparse.Namespace(config=str(tmp_path / "springtide.toml"), port=port, debug=False)
        with pytest.raises(ServeError, match=rf"port {port}: another program listens there: stop it, or set another"):
            COMMANDS["run"].run(arguments)
    assert not (tmp_path / "log").exists()
