"""A real shell in a real pseudo-terminal, served by a process of its own as a runner does it."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from trainer.edges.local.terminal import LocalTerminal

_SERVER = """
import json, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what a script starts with `&`
from trainer.runner.terminal import ShellSettings, serve
serve(socket.socket(fileno=int(sys.argv[1])), ShellSettings(sys.argv[2], json.loads(sys.argv[3])))
"""
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "PS1": "$ ", "LANG": "C.UTF-8"}


class Shell(LocalTerminal):
    """The connection, and what it read so far."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.output = b""

    def raw(self, data: bytes) -> None:
        """Send bytes that need not be frames."""
        self._writer.write(data)

    async def until(self, text: bytes) -> bytes:
        """Read until the shell has written this."""
        async with asyncio.timeout(20):
            while text not in self.output:
                read = await self.read()
                assert read, f"the shell ended: {self.output!r}"
                self.output += read
        return self.output

    async def rest(self) -> bytes:
        """Read until the shell ends."""
        async with asyncio.timeout(20):
            while read := await self.read():
                self.output += read
        return self.output


@asynccontextmanager
async def running_shell(directory: Path, more: Mapping[str, str] | None = None) -> AsyncIterator[Shell]:
    """A shell in this directory. Ends with the block, and the process that serves it with it."""
    ours, theirs = socket.socketpair()
    environment = {**ENVIRONMENT, "HOME": str(directory), **(more or {})}
    arguments = [str(theirs.fileno()), str(directory), json.dumps(environment)]
    with theirs:
        command = [sys.executable, "-c", _SERVER, *arguments]
        server = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()])
    shell = Shell(*await asyncio.open_connection(sock=ours))
    try:
        yield shell
    finally:
        await shell.close()
        assert await server.wait() == 0
