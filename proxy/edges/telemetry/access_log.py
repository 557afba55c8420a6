"""Writes the access log, one JSON line per request, in a thread, so that a slow disk or pipe never blocks the loop.

`record` appends to a bounded queue and returns. Lines that do not fit are dropped, and their number is logged: losing
log lines is better than losing requests.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from proxy.stages.settle import RequestReport

CLIENT_CLOSED_STATUS = 499
CLIENT_CLOSED_MESSAGE = "Client closed connection"
MAX_PATH_CHARS = 256
COLLECT_S = 0.05
"""How long lines are collected for one write."""


class TracedReport(NamedTuple):
    """A request with its server span's ids, in hexadecimal."""

    report: RequestReport
    trace_id: str
    span_id: str


class AccessLogWriter:
    """Writes to a file descriptor, which stays open. Call `start` before the first record, `close` after the last."""

    def __init__(self, fd: int, max_pending: int = 100_000, line: Callable[[Any], bytes] | None = None) -> None:
        """`line`: renders a record; by default `line_of`."""
        self._fd = fd
        self._max_pending = max_pending
        self._line: Callable[[Any], bytes] = line or line_of
        self._pending: deque[RequestReport | TracedReport] = deque()
        self._lost = 0
        self._wake = threading.Event()
        self._is_woken = False  # mirrors `_wake`, cheaper to read
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def record(self, call: RequestReport | TracedReport) -> None:
        if len(self._pending) >= self._max_pending:
            self._lost += 1
            return
        self._pending.append(call)
        if not self._is_woken:
            self._is_woken = True
            self._wake.set()

    def close(self) -> None:
        """Write all lines that are queued. Gives up after 2 s when the reader of a pipe has stopped reading."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait()
            if not self._closing:
                time.sleep(COLLECT_S)
            self._wake.clear()
            self._is_woken = False  # before draining, so that a record that comes meanwhile wakes the thread again
            self._drain()

    def _drain(self) -> None:
        pending, line = self._pending, self._line
        lines = [line(pending.popleft()) for _ in range(len(pending))]
        if self._lost:
            lost, self._lost = self._lost, 0
            lines.append(orjson.dumps({"message": "access log lines lost", "lines": lost}) + b"\n")
        try:
            _write_all(self._fd, b"".join(lines))
        except OSError:
            self._lost += len(lines)


def line_of(call: RequestReport) -> bytes:
    """One flat JSON line, times in milliseconds, unknown fields left out. Kept cheap: the thread shares the GIL."""
    second, ms = divmod(call.ended_at_ms, 1000)
    line: dict[str, Any] = {
        "time": f"{_timestamp(second)}.{ms:03d}Z",
        "message": CLIENT_CLOSED_MESSAGE if call.status == CLIENT_CLOSED_STATUS else "request",
        "method": call.method,
        "status": call.status,
        "request_bytes": call.request_bytes,
        "response_bytes": call.response_bytes,
        "total_ms": round(call.duration_s * 1e6) / 1000,
        "ours_ms": round(call.ours_s * 1e6) / 1000,
        "upstream_ms": round(call.upstream_s * 1e6) / 1000,
    }
    if call.request_id:
        line["request_id"] = call.request_id
    if path := call.path[:MAX_PATH_CHARS]:
        line["path"] = path if path.isascii() else path.encode("ascii", "backslashreplace").decode()
    if call.cause:
        line["cause"] = call.cause
    if call.workspace_id:
        line["workspace"] = call.workspace_id
        line["key_prefix"] = call.key_prefix
    if call.group_id:
        line["group"] = call.group_id
    if call.slug:
        line["slug"] = call.slug
    if call.model_id:
        line["model_id"] = call.model_id
    if call.first_byte_s is not None:
        line["first_byte_ms"] = round(call.first_byte_s * 1e6) / 1000
    if call.tokens is not None:
        line["input_tokens"], line["output_tokens"], line["cached_input_tokens"] = call.tokens
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def traced_line_of(call: RequestReport | TracedReport) -> bytes:
    """The same with `trace_id` and `span_id`, for a request that has a span."""
    if not isinstance(call, TracedReport):
        return line_of(call)
    return line_of(call.report)[:-2] + b',"trace_id":"%b","span_id":"%b"}\n' % (
        call.trace_id.encode(),
        call.span_id.encode(),
    )


@lru_cache(maxsize=4)
def _timestamp(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
