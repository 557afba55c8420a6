"""Listening sockets of the aiohttp applications of both planes.

How many connections the event loop accepts in one turn is what aiohttp passes to `listen`, too, as the length of the
kernel's queue. Few of them let those that are open go on; a long queue loses no newcomer. So each has its own number.
"""

import asyncio
import socket

from aiohttp import web

ACCEPTED_AT_ONCE = 16
WAITING_CONNECTIONS = 1024


async def listen(runner: web.AppRunner, host: str, port: int) -> None:
    """Serve at every address of this host. Raises OSError."""
    places = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, _, _, _, address in places:
        await listen_on(runner, socket.create_server(address[:2], family=family))


async def listen_on(runner: web.AppRunner, listener: socket.socket) -> None:
    """Serve connections to this socket, which is closed with the runner."""
    await web.SockSite(runner, listener, backlog=ACCEPTED_AT_ONCE).start()
    listener.listen(WAITING_CONNECTIONS)
