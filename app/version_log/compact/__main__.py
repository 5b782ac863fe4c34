"""The compactor as a process that loads no torch: `python -m app.version_log.compact LOG`."""

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from app.processes.priority import yield_to_others
from app.processes.tuning import tune_process
from app.version_log.compact.compactor import POLL_SECONDS, WINDOW_SAMPLES, Compactor
from app.version_log.config import LogConfig


def main(arguments: list[str] | None = None) -> int:
    """Compact the log until SIGTERM, or until the parent named by `--parent` is gone."""
    parser = argparse.ArgumentParser(prog="springtide-compactor", description=main.__doc__)
    parser.add_argument("log", type=Path)
    for name, default in (("base_minutes", LogConfig.base_minutes), ("keep_bases", LogConfig.keep_bases)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--log-bytes", type=int, default=LogConfig.log_bytes)
    parser.add_argument("--window-samples", type=int, default=WINDOW_SAMPLES)
    parser.add_argument("--no-onnx", action="store_true", help="bases hold no model.onnx")
    parser.add_argument("--parent", type=int)
    parser.add_argument("--once", action="store_true", help="write one base now and exit")
    options = parser.parse_args(arguments)
    config = LogConfig(
        path=options.log,
        base_minutes=options.base_minutes,
        keep_bases=options.keep_bases,
        onnx=not options.no_onnx,
        log_bytes=options.log_bytes,
    )
    compactor = Compactor(config, window_samples=options.window_samples)
    if options.once:
        compactor.compact()
        return 0
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    if options.parent is not None:
        threading.Thread(target=_stop_with_parent, args=(options.parent, stopping), daemon=True).start()
    compactor.run(stopping)
    return 0


def _stop_with_parent(parent: int, stopping: threading.Event) -> None:
    while os.getppid() == parent and not stopping.wait(POLL_SECONDS):
        pass
    stopping.set()


if __name__ == "__main__":
    tune_process()
    yield_to_others()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
