"""One process that answers over HTTP: its event loop, its signals, and a shutdown that loses no request."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import uvicorn

from springtide.app.serving.api import build_application
from springtide.app.serving.server.accept_balancer import AcceptBalancer
from springtide.app.serving.server.connection import (
    ConnectionConfig,
    ConnectionParts,
    HttpConnection,
    enforce_client_timeouts,
)
from springtide.app.serving.server.drain import GRACEFUL, IMMEDIATE, ConnectionDrain, DrainPolicy
from springtide.app.serving.server.warmup import warm_up
from springtide.app.serving.service import Service

SWITCH_INTERVAL_SECONDS = 0.0005
POLL_SECONDS = 0.02
# while other workers answer, connections are accepted only once there is a version, or after so long without one
SUCCESSOR_WAIT_SECONDS, FIRST_WAIT_SECONDS = 30.0, 5.0

logger = logging.getLogger(__name__)


class WorkerOptions(NamedTuple):
    """How one process serves."""

    on_listening: Callable[[], object] = lambda: None
    until: threading.Event | None = None  # stop once it is set
    balancer: AcceptBalancer | None = None  # where other workers accept connections from the same listener
    wait_seconds: float = 0.0  # how long to wait for a first version before connections are accepted
    on_hangup: Callable[[], object] | None = None  # what SIGHUP does; None: drain gracefully, other workers go on


def serve_requests(service: Service, listener: socket.socket, options: WorkerOptions) -> None:
    """Answer the listener's connections until SIGTERM, SIGINT or `until`; the listener is closed then."""
    warm_up()
    drain = ConnectionDrain()
    settings = ConnectionConfig(
        ConnectionParts(build_application(service), service.fast_path, drain, service.config.max_connections),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        proxy_headers=False,
        lifespan="off",
        timeout_keep_alive=30,
        backlog=2048,
    )
    with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
        runner.run(_run(_Server(settings, drain, options.balancer), service, listener, options))


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the worker (its own handlers re-raise them) and closes by our drain."""

    def __init__(self, settings: uvicorn.Config, drain: ConnectionDrain, balancer: AcceptBalancer | None) -> None:
        super().__init__(settings)
        self.drain = drain
        self._balancer = balancer

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._balancer is None or not sockets:
            await super().startup(sockets)
            return
        state, connections = self.lifespan.state, self.server_state.connections
        self._balancer.start(
            sockets[0],
            lambda: len(connections),
            lambda: HttpConnection(config=self.config, server_state=self.server_state, app_state=state),
        )
        self.servers = []
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._balancer is not None:
            self._balancer.close()
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        await self.drain.wait_closed(self.server_state)


async def _run(server: _Server, service: Service, listener: socket.socket, options: WorkerOptions) -> None:
    loop = asyncio.get_running_loop()

    def shut_down(policy: DrainPolicy) -> None:
        # streams end by themselves; other requests are answered from a view that keeps following the log
        service.replica.end_streams()
        if policy is IMMEDIATE:
            service.snapshots.stop()
        server.drain.start(policy, server.server_state)
        server.should_exit = True

    owns_process = threading.current_thread() is threading.main_thread()
    if owns_process:
        tune_process()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, shut_down, IMMEDIATE)
        loop.add_signal_handler(signal.SIGHUP, options.on_hangup or (lambda: shut_down(GRACEFUL)))
    service.start()
    tasks = [
        asyncio.create_task(_watch(server, options, shut_down)),
        asyncio.create_task(
            enforce_client_timeouts(lambda: _connections(server), service.config.request_timeout_seconds)
        ),
    ]
    if owns_process:
        tasks.append(asyncio.create_task(_tune_after_first_view(service)))
    try:
        await service.replica.wait_for_first_view(options.wait_seconds)
        await server.serve([listener])
    finally:
        service.stop()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def tune_process() -> None:
    """Set what a process that does nothing but serve may set for itself: the switch interval, and frozen objects."""
    # a thread that computes in Python, such as the follower, yields to the event loop after this, not after 5 ms
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    # objects that exist now live until the end: the garbage collector need not traverse them while a request waits
    gc.collect()
    gc.freeze()


async def _tune_after_first_view(service: Service) -> None:
    """Freeze torch's objects too, which come with the first view: a quarter of a million of them.

    Only once: the objects of later models that are replaced must be collected.
    """
    while service.replica.view is None and not service.replica.stopping:
        await asyncio.sleep(POLL_SECONDS)
    tune_process()


def limit_torch_threads(num_processes: int) -> None:
    """Give torch its share of the cores, unless the environment sets the number of its threads."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // num_processes))


def _connections(server: _Server) -> list[HttpConnection]:
    found = list(server.server_state.connections)
    return [connection for connection in found if isinstance(connection, HttpConnection)]


async def _watch(server: _Server, options: WorkerOptions, shut_down: Callable[[DrainPolicy], None]) -> None:
    """Report that the server listens, then wait for `until`."""
    while not server.started:
        await asyncio.sleep(0.005)
    options.on_listening()
    while options.until is not None:
        if options.until.is_set():
            shut_down(IMMEDIATE)
            return
        await asyncio.sleep(POLL_SECONDS)
