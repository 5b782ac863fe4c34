"""Children are restarted with backoff, their output is forwarded, and none outlives its parent; the compactor too."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from springtide.app.errors import UserError
from springtide.app.processes import supervisor
from springtide.app.processes.supervisor import FIRST_PAUSE_SECONDS, ChildSpec, CompactorSupervisor, Supervisor
from tests.support.processes import IMPORT_PATH
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def child(tmp_path: Path, name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> ChildSpec:
    """A child that runs the code; its module lies in a folder of its own."""
    (tmp_path / f"{name}_module.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{IMPORT_PATH}")
    return ChildSpec(name, [], module=f"{name}_module")


def test_output_of_a_child_is_forwarded_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, str]] = []
    spec = child(tmp_path, "talker", "import sys; print('one'); print('two', file=sys.stderr)", monkeypatch)
    supervisor = Supervisor([spec], on_line=lambda name, line: lines.append((name, line)))
    supervisor.start()
    wait_until(lambda: len(lines) == 2)
    supervisor.stop()
    assert sorted(lines) == [("talker", "one"), ("talker", "two")]


def test_a_dead_child_is_restarted_with_doubling_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    spec = child(tmp_path, "dying", "raise SystemExit(1)", monkeypatch)
    supervisor = Supervisor([spec], on_line=lambda *_: None, clock=clock)
    supervisor.start()
    [dying] = supervisor.children
    pause = FIRST_PAUSE_SECONDS
    for restarts in range(3):
        wait_until(lambda: not dying.alive)
        supervisor.restart_dead()
        clock.now += pause * 0.9
        supervisor.restart_dead()
        assert dying.num_restarts == restarts
        clock.now += pause * 0.2
        supervisor.restart_dead()
        assert dying.num_restarts == restarts + 1
        pause *= 2
    supervisor.stop()


def test_a_child_that_exits_with_a_user_error_raises_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; print('springtide: no such key', file=sys.stderr); sys.exit(2)"
    supervisor = Supervisor([child(tmp_path, "wrong", code, monkeypatch)], on_line=lambda *_: None)
    supervisor.start()
    wait_until(lambda: not supervisor.children[0].alive)
    with pytest.raises(UserError, match=r"^no such key$"):
        supervisor.restart_dead()


def test_stopping_sends_sigterm_and_then_sigkill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    polite = "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(0))\nprint('up', flush=True)\nsignal.pause()"
    deaf = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\nwhile True: signal.pause()"
    lines: list[str] = []
    specs = [child(tmp_path, "polite", polite, monkeypatch), child(tmp_path, "deaf", deaf, monkeypatch)]
    supervisor = Supervisor(specs, on_line=lambda name, line: lines.append(line))
    supervisor.start()
    wait_until(lambda: lines == ["up", "up"])
    assert supervisor.stop(seconds=1.0) is False
    assert not any(each.alive for each in supervisor.children)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_die_with_a_killed_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(
        tmp_path,
        "orphan",
        "import os, signal\nfrom springtide.app.processes.signals import die_with_supervisor\n"
        "die_with_supervisor()\n"
        "print(os.getpid(), flush=True)\nsignal.pause()",
        monkeypatch,
    )
    (tmp_path / "parent_module.py").write_text(
        "import signal, sys\nfrom springtide.app.processes.supervisor import ChildSpec, Supervisor\n"
        "s = Supervisor([ChildSpec('orphan', [], module='orphan_module')],"
        " on_line=lambda n, l: print(l, flush=True))\ns.start()\nsignal.pause()"
    )
    with subprocess.Popen([sys.executable, "-m", "parent_module"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        line = parent.stdout.readline()
        parent.send_signal(signal.SIGKILL)
        orphan = int(line)
    wait_until(lambda: not is_alive(orphan))


def is_alive(pid: int) -> bool:
    try:
        # a dead one that init has not fetched yet counts as dead
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_parent_that_is_already_dead_is_noticed() -> None:
    code = "from springtide.app.processes.signals import die_with_supervisor\n"
    code += "die_with_supervisor(); print('still here')"
    environment = dict(os.environ) | {"SPRINGTIDE_PARENT": "999999999", "PYTHONPATH": IMPORT_PATH}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""


def test_a_refused_configuration_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "REFUSED_PAUSE_SECONDS", 0.01)
    config = tmp_path / "springtide.toml"
    config.write_text("not valid TOML")

    def num_refusals() -> int:
        return sum("does not start" in record.getMessage() for record in caplog.records)

    with caplog.at_level(logging.WARNING), CompactorSupervisor(config, tmp_path / "log"):
        wait_until(lambda: num_refusals() >= 2, "a second start")
