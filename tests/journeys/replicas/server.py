"""A model server in a process of its own: `python -m tests.journeys.replicas.server PORT LOG HEALTHY_FILE DELAY_S`.

Prints a line once it listens. Before it answers a call it appends the call's request id to LOG, so that a call that
may have run the model is known even if the server is killed. LOG.most holds the most calls that it ever had at once.
`/health` is 200 while HEALTHY_FILE exists.
"""

import asyncio
import os
import socket
import sys
from asyncio.trsock import TransportSocket
from pathlib import Path

from aiohttp import web

TCP_ESTABLISHED = 1
"""The first byte of Linux' `struct tcp_info`."""
USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


class ModelServer:
    """Answers each call after `delay_s`."""

    def __init__(self, log: Path, healthy_file: Path, delay_s: float) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._healthy_file = healthy_file
        self._delay_s = delay_s
        self._most_log = os.open(f"{log}.most", os.O_WRONLY | os.O_CREAT)
        self._running: list[TransportSocket] = []
        self._most = 0

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self._healthy_file.exists() else 503)

    async def answer(self, request: web.Request) -> web.Response:
        os.write(self._log, f"{request.headers['x-request-id']}\n".encode())
        connection = request.get_extra_info("socket")
        self._running.append(connection)
        self._count()
        try:
            await request.read()
            await asyncio.sleep(self._delay_s)
        finally:
            self._running.remove(connection)
        message = {"role": "assistant", "content": "Here."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
        return web.json_response(body)

    def _count(self) -> None:
        """A call whose caller has hung up has ended, also before this loop has seen that."""
        running = sum(map(_established, self._running))
        if running > self._most:
            self._most = running
            os.pwrite(self._most_log, str(self._most).encode(), 0)


def _established(connection: TransportSocket) -> bool:
    if connection.fileno() == -1:  # closed already
        return False
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == bytes([TCP_ESTABLISHED])


async def serve(server: ModelServer, port: int) -> None:
    app = web.Application()
    app.add_routes([web.get("/health", server.health), web.post("/{path:.*}", server.answer)])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(ModelServer(Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])), int(sys.argv[1])))
