"""A worker process: inherits its listening socket and its channel to the supervisor, and runs the app under uvloop.

Started by `proxy/edges/process/supervisor/worker_processes.py` as `python -m proxy.worker LISTEN_FD CHANNEL_FD
INCARNATION [PAIR_FD]`, never by hand.
"""

import asyncio
import os
import signal
import socket
import sys

import uvloop

from runtime.imports import without_collections
from runtime.log_lines import log_uncaught

with without_collections():
    from proxy.edges.process.log_writer import log_off_the_loop
    from proxy.settings import settings_from
    from proxy.worker.app import WorkerLaunch, serve


def main(arguments: list[str]) -> None:
    # Ctrl-C in a terminal reaches the whole process group; only the supervisor decides when workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listen_fd, channel_fd, incarnation, *pair_fd = arguments
    listener = socket.socket(fileno=int(listen_fd))
    channel = socket.socket(fileno=int(channel_fd))
    launch = WorkerLaunch(incarnation, listener, channel, int(pair_fd[0]) if pair_fd else None)
    settings = settings_from(os.environ)
    log_uncaught()
    with log_off_the_loop(settings.log_level), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, launch))


if __name__ == "__main__":
    main(sys.argv[1:])
