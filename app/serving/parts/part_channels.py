"""The event loop's connections to the servers of all parts: a few to each, opened when they are first needed."""

import asyncio
import time
import urllib.parse

from springtide.app.serving.parts.part_channel import PartChannel
from springtide_client.parts.part_servers import PAUSE_SECONDS, PartServers


class PartChannels:
    """For the event loop's thread alone."""

    def __init__(self, servers: PartServers, num_channels: int) -> None:
        """Open at most `num_channels` to one server."""
        self._servers, self._num_channels = servers, num_channels
        self._channels: list[list[PartChannel]] = [[] for _ in servers.urls]
        self._paused_until = [0.0] * len(servers)
        self._connecting: set[asyncio.Task[None]] = set()

    def idle(self, index: int) -> PartChannel | None:
        """Return a channel to a part; None where there is none now. Then some are opened for later calls."""
        channels = self._channels[index]
        for channel in channels:
            if channel.is_idle:
                return channel
        self._channels[index] = [channel for channel in channels if not channel.is_closed]
        if time.monotonic() >= self._paused_until[index]:
            for _ in range(self._num_channels - len(self._channels[index])):
                self._open(index)
        return None

    def pause(self, index: int) -> None:
        """Open none to a part for a moment: it does not answer."""
        self._paused_until[index] = time.monotonic() + PAUSE_SECONDS

    def close(self) -> None:
        """Close them all. Exchanges in progress have no response."""
        for task in self._connecting:
            task.cancel()
        for channels in self._channels:
            for channel in channels:
                channel.close()

    def _open(self, index: int) -> None:
        channel = PartChannel()
        self._channels[index].append(channel)
        task = asyncio.get_running_loop().create_task(self._connect(index, channel))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, index: int, channel: PartChannel) -> None:
        url, loop = urllib.parse.urlsplit(self._servers.urls[index]), asyncio.get_running_loop()
        assert url.hostname is not None
        try:
            connecting = loop.create_connection(lambda: channel, url.hostname, url.port or 80)
            await asyncio.wait_for(connecting, self._servers.timeout_seconds)
        except OSError:  # the threads' way finds the same, and says it
            self.pause(index)
            self._channels[index] = [other for other in self._channels[index] if other is not channel]
