"""`springtide serve`: an address, and one process or several workers that answer there until they are stopped."""

import logging
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from springtide.app.errors import UserError
from springtide.app.processes.signals import Handler, SignalEvent, handled_signals
from springtide.app.serving.config import ServeConfig
from springtide.app.serving.http.authorization import Tokens, load_tokens
from springtide.app.serving.metrics.shared_metrics import WorkerSlot
from springtide.app.serving.server.accept_balancer import AcceptBalancer, ConnectionCounts
from springtide.app.serving.server.address import bind
from springtide.app.serving.server.warmup import warm_up
from springtide.app.serving.server.worker import (
    FIRST_WAIT_SECONDS,
    SUCCESSOR_WAIT_SECONDS,
    WorkerOptions,
    limit_torch_threads,
    serve_requests,
)
from springtide.app.serving.server.worker_pool import WorkerPool
from springtide.app.serving.service import Service
from springtide.app.version_log.config import LogConfig
from springtide_client.errors import SpringtideError
from springtide_client.log.base import MODEL
from springtide_client.log.directory import LogDirectory

SUPERVISE_INTERVAL_SECONDS = 0.05

logger = logging.getLogger(__name__)


def serve(
    log_path: str | Path,
    config: ServeConfig,
    *,
    log: LogConfig | None = None,
    version: int | None = None,
    on_listening: Callable[[str], None] | None = None,
    until: threading.Event | None = None,
) -> None:
    """Serve the log until SIGTERM, SIGINT or `until`; the log need not exist yet. `version`: serve only this one.

    `log` are the log's settings, from which a command's status estimates when files are removed. `on_listening` is
    called with the server's URL once it answers. With several workers, SIGHUP restarts them one by one.
    Raises UserError for settings that would open the server to the network without a token, ServeError if the address
    cannot be bound.
    """
    try:
        tokens = load_tokens(config)
    except ValueError as error:
        raise UserError(str(error)) from None
    log = log or LogConfig(path=Path(log_path))
    with bind(config) as listener:
        url = f"http://{_address_text(listener)}"

        def listening() -> None:
            logger.info("listening", extra={"url": url, "workers": config.workers})
            if on_listening is not None:
                on_listening(url)

        if config.workers == 1:
            _serve_in_this_process(listener, log, config, tokens, listening, until, version)
        else:
            _serve_by_workers(listener, log, config, listening, until or SignalEvent(), version)


def _serve_in_this_process(
    listener: socket.socket,
    log: LogConfig,
    config: ServeConfig,
    tokens: Tokens,
    on_listening: Callable[[], None],
    until: threading.Event | None,
    version: int | None,
) -> None:
    def warn() -> None:
        logger.warning("one worker cannot be restarted without a gap: set [serve] workers = 2, or send SIGTERM")

    service = Service(log, config, tokens, version=version)
    try:
        serve_requests(service, listener, WorkerOptions(on_listening=on_listening, until=until, on_hangup=warn))
    finally:
        service.close()


def _serve_by_workers(
    listener: socket.socket,
    log: LogConfig,
    config: ServeConfig,
    on_listening: Callable[[], None],
    stopping: threading.Event,
    version: int | None,
) -> None:
    counts = ConnectionCounts()

    def run_worker(
        own: ServeConfig, slot: WorkerSlot, report_listening: Callable[[], None], is_successor: bool
    ) -> None:
        limit_torch_threads(config.workers)
        service = Service(log, own, load_tokens(own), slot=slot, version=version)
        options = WorkerOptions(
            on_listening=report_listening,
            balancer=AcceptBalancer(counts, slot.number),
            wait_seconds=SUCCESSOR_WAIT_SECONDS if is_successor else FIRST_WAIT_SECONDS,
        )
        try:
            serve_requests(service, listener, options)
        finally:
            service.close()

    # done before the first fork, for all workers: one that is started later is ready at once
    warm_up()
    _import_model_libraries(Path(log.path))
    restarting = SignalEvent()
    handlers = {
        signal.SIGTERM: _set_on_signal(stopping),
        signal.SIGINT: _set_on_signal(stopping),
        signal.SIGHUP: _set_on_signal(restarting),
    }
    with tempfile.TemporaryDirectory(prefix="springtide-metrics-") as folder, handled_signals(handlers):
        workers = WorkerPool(run_worker, config, Path(folder), on_exit=counts.remove)
        try:
            has_reported = False
            while not stopping.wait(SUPERVISE_INTERVAL_SECONDS):
                if restarting.is_set():
                    restarting.clear()
                    workers.start_rolling_restart()
                workers.supervise()
                if not has_reported and workers.all_listening:
                    has_reported = True
                    on_listening()
        finally:
            workers.stop()


def _set_on_signal(event: threading.Event) -> Handler:
    return lambda number, frame: event.set()


def _import_model_libraries(log_path: Path) -> None:
    """Import what loading a model imports, by loading one, if the log has one already."""
    from springtide_client.model.exported_model import ExportedModel

    for path in reversed(LogDirectory(log_path).bases()):
        with suppress(SpringtideError, OSError):
            ExportedModel.load(path / MODEL)
            return


def _address_text(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
