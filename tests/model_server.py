"""A small model server on the standard library, which can be slow, crash, hang, be killed and print floods.

`python -m tests.model_server --port N [switches]`. In a call, the word that its body contains decides what happens:
crash (the process ends in mid-request), killed (SIGKILL, as the out-of-memory killer), hang (this call and all later
health checks never answer), flood (prints 200 000 lines), slow (answers after two seconds).
"""

import argparse
import json
import os
import resource
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


class Server(ThreadingHTTPServer):
    """The server's switches, and whether it hangs."""

    daemon_threads = True

    def __init__(self, port: int, loads_until: float, health_path: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.loads_until = loads_until
        self.health_path = health_path
        self.hangs = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        if self.path != self.server.health_path:
            self._send(404, {"error": "no such path"})
        elif self.server.hangs.is_set():
            time.sleep(3600)
        else:
            self._send(503 if time.monotonic() < self.server.loads_until else 200, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        if "crash" in body:
            print("ERROR: about to crash", file=sys.stderr, flush=True)
            os._exit(3)
        if "killed" in body:
            os.kill(os.getpid(), signal.SIGKILL)
        if "memory" in body:
            exhaust_memory()
        if "hang" in body:
            self.server.hangs.set()
            time.sleep(3600)
        if "flood" in body:
            print("\n".join(f"flood {number}" for number in range(200_000)), flush=True)
        if "slow" in body:
            time.sleep(2)
        print(f"answered by pid {os.getpid()}", flush=True)
        message = {"role": "assistant", "content": f"pid {os.getpid()}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._send(200, {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": USAGE})

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def exhaust_memory() -> None:
    """Ask for more than the process may have; it ends as Python programs do."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
    try:
        bytearray(1 << 30)
    except MemoryError:
        print("Traceback (most recent call last):\nMemoryError", file=sys.stderr, flush=True)
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slow-start-s", type=float, default=0.0)
    parser.add_argument("--health-path", default="/health")
    parser.add_argument("--exit-at-once", action="store_true")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--child-file", help="start another process of the same group, and write its pid here")
    options = parser.parse_args()
    if options.exit_at_once:
        print("ERROR: model file not found: /models/none.gguf", file=sys.stderr, flush=True)
        sys.exit(7)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_sigterm else signal.SIG_DFL)
    if options.child_file and (child := os.fork()):
        Path(options.child_file).write_text(str(child))
    elif options.child_file:
        time.sleep(3600)
    print(f"model server: pid {os.getpid()}, secrets seen: {[n for n in os.environ if n.startswith('TOLLGATE_')]}")
    Server(options.port, time.monotonic() + options.slow_start_s, options.health_path).serve_forever()


if __name__ == "__main__":
    main()
