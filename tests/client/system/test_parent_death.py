"""A child process ends when its parent dies, also one that was launched as another program."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from springtide_client.system import parent_death
from tests.support.waiting import wait_until

CLIENT = Path(__file__).parents[3] / "deploy" / "client"
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
CHILD = f"""
import sys
from springtide_client.system import parent_death
if sys.argv[2:] == ["without-kernel"]:
    parent_death._request_death_signal = lambda _: False
parent_death.die_with_parent(int(sys.argv[1]))
{SLEEPER}
"""
LAUNCHER = """
import sys
from springtide_client.system import parent_death
parent_death._request_death_signal = lambda _: False
parent_death.main(int(sys.argv[1]), sys.argv[2:])
"""
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([word.replace("PARENT", str(os.getpid())) for word in sys.argv[1:]])
print(child.pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        # a dead process that init has not reaped yet counts as dead
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "command",
    [
        ["-c", CHILD, "PARENT"],
        ["-c", CHILD, "PARENT", "without-kernel"],
        ["-I", "-S", parent_death.__file__, "PARENT", sys.executable, "-c", SLEEPER],
        ["-c", LAUNCHER, "PARENT", sys.executable, "-c", SLEEPER],
    ],
    ids=["kernel", "thread", "launcher", "launcher without kernel"],
)
def test_a_child_dies_with_a_killed_parent(command: list[str]) -> None:
    environment = dict(os.environ) | {"PYTHONPATH": str(CLIENT)}
    arguments = [sys.executable, "-c", PARENT, sys.executable, *command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        assert "up" in lines
        [child] = [int(line) for line in lines if line != "up"]
        parent.send_signal(signal.SIGKILL)
        wait_until(lambda: not is_alive(child), "the child's end")


def test_a_parent_that_is_already_dead_is_noticed() -> None:
    code = (
        "from springtide_client.system.parent_death import die_with_parent; die_with_parent(999999999); print('alive')"
    )
    environment = dict(os.environ) | {"PYTHONPATH": str(CLIENT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.abort()", 134)])
def test_a_launcher_without_the_kernel_ends_as_its_program_does(code: str, status: int) -> None:
    command = [sys.executable, "-c", LAUNCHER, str(os.getpid()), sys.executable, "-c", code]
    assert subprocess.run(command, env=dict(os.environ) | {"PYTHONPATH": str(CLIENT)}, check=False).returncode == status


def test_a_launcher_without_the_kernel_passes_sigint_on() -> None:
    code = (
        "import signal, sys, time; signal.signal(2, lambda *_: sys.exit(3)); print('up', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", LAUNCHER, str(os.getpid()), sys.executable, "-c", code]
    environment = dict(os.environ) | {"PYTHONPATH": str(CLIENT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) == 3
