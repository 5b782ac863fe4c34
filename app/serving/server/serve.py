"""`springtide serve`: an address, and one process or several that answer there, until told to stop."""

import logging
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from springtide_client.errors import SpringtideError
from springtide_client.log.base import MODEL
from springtide_client.log.directory import LogDirectory

from app.errors import UserError
from app.processes.signals import Handler, handled_signals
from app.serving.config import ServeConfig
from app.serving.http.tokens import Tokens, load_tokens
from app.serving.ops.shared_metrics import WorkerSlot
from app.serving.server.accept_balancer import AcceptBalancer, ConnectionCounts
from app.serving.server.warmup import warm_up
from app.serving.server.worker import (
    SUCCESSOR_SECONDS,
    TOGETHER_SECONDS,
    WorkerOptions,
    limit_torch_threads,
    serve_requests,
)
from app.serving.server.worker_pool import WorkerPool
from app.serving.service import Service
from app.version_log.config import LogConfig

LOOK_SECONDS = 0.05

logger = logging.getLogger(__name__)


class ServeError(SpringtideError):
    """The server cannot listen where it should."""


def serve(
    log_path: str | Path,
    config: ServeConfig,
    *,
    log: LogConfig | None = None,
    on_listening: Callable[[str], None] | None = None,
    until: threading.Event | None = None,
) -> None:
    """Serve the log until SIGTERM, SIGINT or `until`; the log need not exist yet.

    `log`: its settings, by which receipts tell when files go. `on_listening` gets the server's URL, once it answers.
    With several workers SIGHUP restarts them one by one. Raises UserError for settings that would open the server to
    the network without a token, ServeError where the address cannot be taken.
    """
    try:
        tokens = load_tokens(config)
    except ValueError as error:
        raise UserError(str(error)) from None
    log = log or LogConfig(path=Path(log_path))
    with bind(config) as listener:
        url = f"http://{_shown(listener)}"

        def listening() -> None:
            logger.info("listening", extra={"url": url, "workers": config.workers})
            if on_listening is not None:
                on_listening(url)

        if config.workers == 1:
            _serve_alone(listener, log, config, tokens, listening, until)
        else:
            _serve_by_workers(listener, log, config, listening, until or threading.Event())


def _serve_alone(
    listener: socket.socket,
    log: LogConfig,
    config: ServeConfig,
    tokens: Tokens,
    on_listening: Callable[[], None],
    until: threading.Event | None,
) -> None:
    def explain() -> None:
        logger.warning("one worker cannot be restarted without a gap: set [serve] workers = 2, or send SIGTERM")

    service = Service(log, config, tokens)
    try:
        serve_requests(service, listener, WorkerOptions(on_listening=on_listening, until=until, on_hangup=explain))
    finally:
        service.close()


def _serve_by_workers(
    listener: socket.socket,
    log: LogConfig,
    config: ServeConfig,
    on_listening: Callable[[], None],
    stopping: threading.Event,
) -> None:
    crowd = ConnectionCounts()

    def answer(own: ServeConfig, place: WorkerSlot, tell: Callable[[], None], is_successor: bool) -> None:
        limit_torch_threads(config.workers)
        service = Service(log, own, load_tokens(own), place=place)
        try:
            wait_seconds = SUCCESSOR_SECONDS if is_successor else TOGETHER_SECONDS
            door = AcceptBalancer(crowd, place.number)
            serve_requests(service, listener, WorkerOptions(on_listening=tell, door=door, wait_seconds=wait_seconds))
        finally:
            service.close()

    # here already, for all of them: a worker that is made later is there at once
    warm_up()
    _load_model(Path(log.path))
    rolling = threading.Event()
    events = {signal.SIGTERM: stopping, signal.SIGINT: stopping, signal.SIGHUP: rolling}
    handlers = {number: _set_on_signal(event) for number, event in events.items()}
    with tempfile.TemporaryDirectory(prefix="springtide-tally-") as folder, handled_signals(handlers):
        workers = WorkerPool(answer, config, Path(folder), on_end=crowd.remove)
        try:
            has_told = False
            while not stopping.wait(LOOK_SECONDS):
                if rolling.is_set():
                    rolling.clear()
                    workers.start_rolling_restart()
                workers.supervise()
                if not has_told and workers.all_listening:
                    has_told = True
                    on_listening()
        finally:
            workers.stop()


def _set_on_signal(event: threading.Event) -> Handler:
    return lambda number, frame: event.set()


def _load_model(log_path: Path) -> None:
    """Import what loading a model imports, by loading one, where the log has one by now."""
    from springtide_client.model.exported_model import ExportedModel

    for path in reversed(LogDirectory(log_path).bases()):
        with suppress(SpringtideError, OSError):
            ExportedModel.load(path / MODEL)
            return


def bind(config: ServeConfig) -> socket.socket:
    """A socket bound to the configured address; ServeError says who else may have it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise ServeError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror or error}; "
            "stop what listens there or set another [serve] port"
        ) from None


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
