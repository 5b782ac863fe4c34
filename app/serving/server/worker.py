"""One process that answers over HTTP: its event loop, its signals, and an end that loses no request."""

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

from app.serving.api import build_api
from app.serving.http.connection import HttpConnection
from app.serving.http.middleware import HttpMiddleware
from app.serving.server.accept_balancer import AcceptBalancer
from app.serving.server.drain import GRACEFUL, IMMEDIATE, ConnectionDrain, DrainPolicy
from app.serving.server.warmup import warm_up
from app.serving.service import Service

SWITCH_SECONDS = 0.0005
SETTLE_SECONDS = 0.02
# while others answer, nobody is let in before there is a version, unless there is none after so long
SUCCESSOR_SECONDS, TOGETHER_SECONDS = 30.0, 5.0

logger = logging.getLogger(__name__)


class WorkerOptions(NamedTuple):
    """What a process is told and tells while it answers."""

    on_listening: Callable[[], object] = lambda: None
    until: threading.Event | None = None
    door: AcceptBalancer | None = None  # where others take connections from the same listener
    wait_seconds: float = 0.0  # so long nobody is let in before there is a version
    on_hangup: Callable[[], object] | None = None  # SIGHUP; absent: leave patiently, for others go on


def serve_requests(service: Service, listener: socket.socket, calls: WorkerOptions) -> None:
    """Answer what comes to the listener until SIGTERM, SIGINT or `until`; the listener is closed then."""
    warm_up()
    leaving = ConnectionDrain()
    settings = uvicorn.Config(
        HttpMiddleware(service, build_api(service), leaving),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        http=HttpConnection,
        proxy_headers=False,
        lifespan="off",
        timeout_keep_alive=30,
        backlog=2048,
    )
    with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
        runner.run(_run(_Server(settings, leaving, calls.door), service, listener, calls))


class _Server(uvicorn.Server):
    """A uvicorn that leaves the signals to us (its own way is to die of them), and closes by our manner."""

    def __init__(self, settings: uvicorn.Config, leaving: ConnectionDrain, door: AcceptBalancer | None) -> None:
        super().__init__(settings)
        self.leaving = leaving
        self._door = door

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._door is None or not sockets:
            await super().startup(sockets)
            return
        state, connections = self.lifespan.state, self.server_state.connections
        self._door.start(
            sockets[0],
            lambda: len(connections),
            lambda: HttpConnection(config=self.config, server_state=self.server_state, app_state=state),
        )
        self.servers = []
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._door is not None:
            self._door.close()
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        await self.leaving.wait_closed(self.server_state)


async def _run(server: _Server, service: Service, listener: socket.socket, calls: WorkerOptions) -> None:
    loop = asyncio.get_running_loop()

    def leave(manner: DrainPolicy) -> None:
        # streams end by themselves; what else is asked is answered from a view that goes on following
        service.replica.end_streams()
        if manner is IMMEDIATE:
            service.snapshots.stop()
        server.leaving.start(manner, server.server_state)
        server.should_exit = True

    owns_process = threading.current_thread() is threading.main_thread()
    if owns_process:
        tune_process()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, leave, IMMEDIATE)
        loop.add_signal_handler(signal.SIGHUP, calls.on_hangup or (lambda: leave(GRACEFUL)))
    service.start()
    watcher = asyncio.create_task(_watch(server, calls, leave))
    patience = asyncio.create_task(_be_patient(server, service.config.request_timeout_seconds))
    claim = asyncio.create_task(_claim_again(service)) if owns_process else None
    try:
        await service.replica.wait_for_first_view(calls.wait_seconds)
        await server.serve([listener])
    finally:
        service.stop()
        for task in filter(None, (watcher, patience, claim)):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def tune_process() -> None:
    """What a process that does nothing but serve may set for all of itself."""
    # a thread that computes in Python, such as the follower, gives the event loop way after this, not after 5 ms
    sys.setswitchinterval(SWITCH_SECONDS)
    # what lives by now lives to the end: the collector need not walk it while somebody waits
    gc.collect()
    gc.freeze()


async def _claim_again(service: Service) -> None:
    """Torch comes with the first view: a quarter of a million objects that the collector would walk every few seconds.

    Once only: of the objects of later models those that are replaced must be collected.
    """
    while service.replica.view is None and not service.replica.stopping:
        await asyncio.sleep(SETTLE_SECONDS)
    tune_process()


def limit_torch_threads(num_processes: int) -> None:
    """Give torch its share of the cores, unless the environment says how many threads it may have."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // num_processes))


async def _be_patient(server: _Server, seconds: float) -> None:
    """Look after slow clients: a look a second costs each request nothing."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(1.0, seconds / 4))
        for connection in list(server.server_state.connections):
            assert isinstance(connection, HttpConnection)
            connection.enforce_timeouts(loop.time(), seconds)


async def _watch(server: _Server, calls: WorkerOptions, leave: Callable[[DrainPolicy], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    calls.on_listening()
    while calls.until is not None:
        if calls.until.is_set():
            leave(IMMEDIATE)
            return
        await asyncio.sleep(0.02)
