"""Start commands quickly: a server process imports and compiles everything once, and forks for each command.

To the kernel, to files and to signals a forked command is a process like any other; only its start is shorter, by the
seconds that torch and the compiled kernels take to load.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.support.processes import module_command, our_environment

START_SECONDS = 300.0


class ProcessPool:
    """The client's side: starts commands and collects their exit statuses."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            module_command("tests.support.process_pool"),
            env=our_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._changed = threading.Condition()
        self._started: list[int] = []
        self._has_ended = False
        self.ended: dict[int, int] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(
        self, command: list[str], *, cwd: Path, out: Path, environment: dict[str, str], err: Path | None = None
    ) -> int:
        """Start `springtide COMMAND` and return its process id. Without `err`, errors go to `out` too."""
        files = {"out": str(out), "err": str(err or out)}
        request = {"command": command, "cwd": str(cwd), **files, "environment": environment}
        assert self._process.stdin is not None
        with self._changed:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            self._changed.wait_for(lambda: self._started or self._has_ended, START_SECONDS)
            assert self._started, "the process pool does not respond; its errors are on stderr"
            return self._started.pop()

    def is_alive(self, pid: int) -> bool:
        return pid not in self.ended

    def wait(self, pid: int, seconds: float) -> int | None:
        """Wait for the end; return the exit status, negative for a signal, or None if the process still runs."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self.ended, seconds)
            return self.ended.get(pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._listener.join()
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            with self._changed:
                if "started" in event:
                    self.ended.pop(event["started"], None)  # of an older process with this id
                    self._started.append(event["started"])
                else:
                    self.ended[event["ended"]] = event["status"]
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


class ForkedProcess:
    """A command that a pool has started, with the methods of a Popen."""

    def __init__(self, pool: ProcessPool, pid: int) -> None:
        self.pid, self._pool = pid, pool

    @property
    def returncode(self) -> int | None:
        return self._pool.ended.get(self.pid)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float) -> int:
        status = self._pool.wait(self.pid, timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)


def warm_up() -> None:
    """Import everything and load every kernel that the commands need; leaves no thread behind."""
    import springtide.app.commands.processes
    import springtide.app.commands.train
    import springtide.app.processes.supervisor
    import springtide.app.serving.server.serve
    import springtide.app.training.ranks.ranks
    import springtide.app.training.trainer
    import springtide.app.version_log.compact.compactor  # noqa: F401
    from tests.support.python_backward import without_autograd_engine
    from tests.torture.verify.reference_run import ReferenceRun

    with tempfile.TemporaryDirectory() as folder, without_autograd_engine():
        run = ReferenceRun(Path(folder) / "warm", 0)
        run.advance(640, [])
        run.close()


def exec_command(request: dict[str, Any]) -> int:
    """Run the command in the forked child, and return its exit status."""
    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    os.environ.update(request["environment"])
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for target, path, flags in ((0, os.devnull, os.O_RDONLY), (1, request["out"], append), (2, request["err"], append)):
        os.dup2(os.open(path, flags, 0o644), target)
    if recorded := request["environment"].get("SPRINGTIDE_RECORD"):
        from tests.torture.disk.fsync_recorder import FsyncRecorder

        root, folder = recorded.split(os.pathsep)
        FsyncRecorder(Path(root), Path(folder)).install()
    if learned := request["environment"].get("SPRINGTIDE_JOIN_RECORD"):
        from tests.torture.join.recorder import install

        install(Path(learned))
    from springtide.app.cli import main
    from springtide.app.version_log import failpoints

    failpoints._folder.cache_clear()  # cached before the folder was set
    return main(request["command"])


def main() -> None:
    warm_up()
    assert threading.active_count() == 1, threading.enumerate()  # only a single-threaded process may fork safely
    pending, running = b"", set()
    while True:
        ready, _, _ = select.select([0], [], [], 0.01)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            running.discard(pid)
            print(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}), flush=True)
        if not ready:
            continue
        if not (read := os.read(0, 1 << 16)):
            break
        *lines, pending = (pending + read).split(b"\n")
        for line in lines:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = exec_command(json.loads(line))
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            running.add(pid)
            print(json.dumps({"started": pid}), flush=True)


if __name__ == "__main__":
    main()
