"""A relay between a worker and a real Redis that delays requests or replies, or cuts connections.

So a test decides whether a command has run before its connection is lost, and how late its reply arrives.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Relay:
    """Listens at `url`. Requests and replies pass while the event `requests` or `replies` is set."""

    def __init__(self, folder: Path, target: Path) -> None:
        self._path = folder / "relay.sock"
        self._target = target
        self._links: list[_Link] = []
        self.url = f"unix://{self._path}"
        self.requests = asyncio.Event()
        self.replies = asyncio.Event()
        self.requests.set()
        self.replies.set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self._path)

    async def close(self) -> None:
        self._server.close()
        self.cut()
        tasks = [task for link in self._links for task in link.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def held_replies(self) -> int:
        """The number of reply bytes that the relay holds back."""
        return sum(link.held_bytes for link in self._links if not link.is_cut)

    def cut(self) -> None:
        """Cut the worker's connections. Requests held back still reach Redis once `requests` is set."""
        for link in self._links:
            link.is_cut = True
            link.worker.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.append(link)
        from_redis, to_redis = await asyncio.open_unix_connection(self._target)
        link.tasks = [
            asyncio.create_task(self._pass_requests(reader, to_redis)),
            asyncio.create_task(self._pass_replies(link, from_redis)),
        ]

    async def _pass_requests(self, reader: asyncio.StreamReader, to_redis: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self.requests.wait()
                to_redis.write(data)
        except ConnectionError:
            pass  # cut
        finally:
            to_redis.close()

    async def _pass_replies(self, link: "_Link", from_redis: asyncio.StreamReader) -> None:
        while data := await from_redis.read(65_536):
            link.held_bytes += len(data)
            await self.replies.wait()
            link.held_bytes -= len(data)
            if not link.is_cut:
                link.worker.write(data)


class _Link:
    """One connection of a worker."""

    def __init__(self, worker: asyncio.StreamWriter) -> None:
        self.worker = worker
        self.tasks: list[asyncio.Task[None]] = []
        self.is_cut = False
        self.held_bytes = 0


@asynccontextmanager
async def relay_to(target: Path) -> AsyncIterator[Relay]:
    """A running relay to the Redis at that socket."""
    with tempfile.TemporaryDirectory(prefix="tg-relay-") as folder:
        relay = Relay(Path(folder), target)
        await relay.start()
        try:
            yield relay
        finally:
            await relay.close()
