"""`springtide serve`: one process that listens, until it is told to stop."""

import asyncio
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from springtide_client.errors import SpringtideError

from app.errors import UserError
from app.serving.api import build_api
from app.serving.config import ServeConfig
from app.serving.express_protocol import ExpressProtocol
from app.serving.front import Front
from app.serving.service import Service
from app.serving.tokens import load_tokens
from app.serving.warm import warm_up
from app.versions.config import LogConfig

SWITCH_SECONDS = 0.0005

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
    Raises UserError for settings that would open the server to the network without a token, ServeError where the
    address cannot be taken.
    """
    try:
        tokens = load_tokens(config)
    except ValueError as error:
        raise UserError(str(error)) from None
    warm_up()
    listener = listen(config)
    service = Service(log or LogConfig(path=Path(log_path)), config, tokens)
    try:
        url = f"http://{_shown(listener)}"
        settings = uvicorn.Config(
            Front(service, build_api(service)),
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            http=ExpressProtocol,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            timeout_keep_alive=30,
            backlog=2048,
        )
        with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
            runner.run(_run(_Server(settings), service, listener, url, on_listening, until))
    finally:
        service.close()
        listener.close()


def listen(config: ServeConfig) -> socket.socket:
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


class _Server(uvicorn.Server):
    """A uvicorn that leaves the signals to `serve`: its own way is to die of them once everything is closed."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def _run(
    server: _Server,
    service: Service,
    listener: socket.socket,
    url: str,
    on_listening: Callable[[str], None] | None,
    until: threading.Event | None,
) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # streams end by themselves, so that the graceful stop need not wait for them
        service.stop()
        server.should_exit = True

    if threading.current_thread() is threading.main_thread():
        claim_process()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
    service.start()
    watcher = asyncio.create_task(_watch(server, until, stop, lambda: on_listening and on_listening(url)))
    logger.info("listening", extra={"url": url})
    try:
        await server.serve([listener])
    finally:
        service.stop()
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher


def claim_process() -> None:
    """What a process that does nothing but serve may set for all of itself."""
    # a thread that computes in Python, such as the follower, gives the event loop way after this, not after 5 ms
    sys.setswitchinterval(SWITCH_SECONDS)
    # what lives by now lives to the end: the collector need not walk it while somebody waits
    gc.collect()
    gc.freeze()


async def _watch(
    server: uvicorn.Server, until: threading.Event | None, stop: Callable[[], None], started: Callable[[], object]
) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    started()
    while until is not None:
        if until.is_set():
            stop()
            return
        await asyncio.sleep(0.02)


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
