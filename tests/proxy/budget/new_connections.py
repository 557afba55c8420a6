"""Serves calls on real connections, a new one for each: `python -m tests.proxy.budget.new_connections CALLS [tls]`.

An instrument, not a test: run it below `valgrind --tool=callgrind` or `strace -fc`, with two numbers of calls. The
difference is the cost of a connection with its call. The callers are threads of another process.
"""

import asyncio
import socket
import ssl
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from proxy.edges.http.server import HttpServer
from runtime.http.tls_layer import TlsListener
from tests.fakes.pair_files import LOCALHOST, PairFiles
from tests.proxy.budget.canned_worker import CALLERS, REQUEST, canned_worker

CLOSING = REQUEST.replace(b"accept:", b"connection: close\r\naccept:")


def call(port: int, calls: int, cert_file: str) -> None:
    """Make so many calls, each on a new connection."""
    context = ssl.create_default_context(cafile=cert_file) if cert_file else None
    for _ in range(calls):
        with socket.create_connection(("127.0.0.1", port)) as plain:
            sock = context.wrap_socket(plain, server_hostname=LOCALHOST) if context else plain
            sock.sendall(CLOSING)
            answer = b""
            while part := sock.recv(65_536):
                answer += part
            assert answer.startswith(b"HTTP/1.1 200 "), answer


async def _serve(server: HttpServer, calls: int, cert_file: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await server.start(listener)
    argv = [sys.executable, "-m", "tests.proxy.budget.new_connections", "--call", str(port), str(calls), cert_file]
    callers = await asyncio.create_subprocess_exec(*argv)
    if await callers.wait():
        raise subprocess.SubprocessError("a call failed")


def main(arguments: list[str]) -> None:
    """Serve so many calls of each of eight callers."""
    with canned_worker() as (runner, worker), tempfile.TemporaryDirectory() as scratch:
        cert_file = ""
        server = worker.server
        if arguments[1:] == ["tls"]:
            pair = PairFiles(Path(scratch)).issue()
            cert_file = str(pair.cert_file)
            tls = TlsListener(pair.read().context(), "error_code")
            server = HttpServer(server.handle, tls=tls)
        runner.run(_serve(server, int(arguments[0]), cert_file))


if __name__ == "__main__":
    if sys.argv[1] == "--call":
        with ThreadPoolExecutor(CALLERS) as threads:
            list(threads.map(call, [int(sys.argv[2])] * CALLERS, [int(sys.argv[3])] * CALLERS, [sys.argv[4]] * CALLERS))
    else:
        main(sys.argv[1:])
