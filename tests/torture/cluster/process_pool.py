"""Starts our commands quickly: a process that has imported and compiled everything once, and forks on request.

A forked command is a process like any other to the kernel, to files and to signals; only its start is shorter.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT), str(ROOT / "deploy" / "client")]


class ProcessPool:
    """The driver's side."""

    def __init__(self) -> None:
        environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.cluster.process_pool"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._told = threading.Condition()
        self._started: list[int] = []
        self.ended: dict[int, int] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(self, command: list[str], *, cwd: Path, out: Path, environment: dict[str, str]) -> int:
        """Run `springtide command`; returns its process id."""
        request = {"command": command, "cwd": str(cwd), "out": str(out), "environment": environment}
        assert self._process.stdin is not None
        with self._told:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            assert self._told.wait_for(lambda: self._started, 120.0), "the nursery does not answer"
            return self._started.pop()

    def alive(self, pid: int) -> bool:
        return pid not in self.ended

    def wait(self, pid: int, seconds: float) -> int | None:
        """The exit status, negative for a signal; None while it lives."""
        with self._told:
            self._told.wait_for(lambda: pid in self.ended, seconds)
            return self.ended.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._listener.join(20)
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told: dict[str, Any] = json.loads(line)
            with self._told:
                if "started" in told:
                    self._started.append(told["started"])
                else:
                    self.ended[told["ended"]] = told["status"]
                self._told.notify_all()


def warm_up() -> None:
    """Everything imported, every kernel of the torture's configuration loaded, no thread left."""
    import app.commands.serve
    import app.commands.train
    import app.processes.compactor_supervisor
    import app.serving.server.serve
    import app.training.trainer  # noqa: F401
    from tests.torture.verify.reference_run import ReferenceRun

    with tempfile.TemporaryDirectory() as folder:
        run = ReferenceRun(Path(folder) / "warm", 0)
        run.advance(640, [])
        run.close()


def exec_command(request: dict[str, Any]) -> int:
    """In the child: the command."""
    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(request["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target, source in ((0, nothing), (1, out), (2, out)):
        os.dup2(source, target)
    if recorded := request["environment"].get("SPRINGTIDE_RECORD"):
        from tests.torture.disk.fsync_recorder import FsyncRecorder

        root, folder = recorded.split(os.pathsep)
        FsyncRecorder(Path(root), Path(folder)).install()
    from app.cli import main
    from app.version_log import failpoints

    failpoints._folder.cache_clear()  # asked before there was a folder

    return main(request["command"])


def main() -> None:
    warm_up()
    assert threading.active_count() == 1, threading.enumerate()
    waiting, living = b"", set()
    while True:
        ready, _, _ = select.select([0], [], [], 0.01)
        while living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            living.discard(pid)
            print(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}), flush=True)
        if not ready:
            continue
        if not (read := os.read(0, 1 << 16)):
            break
        *lines, waiting = (waiting + read).split(b"\n")
        for line in lines:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = exec_command(json.loads(line))
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            living.add(pid)
            print(json.dumps({"started": pid}), flush=True)


if __name__ == "__main__":
    main()
