"""Writes the access log, one JSON line per request, in a thread, so that a slow disk or pipe never blocks the loop.

`write` makes the lines of some calls, appends them to a bounded queue and returns. It runs on the loop: a thread would
hold the GIL just as long, but later, when the calls' figures have left the processor's cache. Lines that do not fit are
dropped, and their number is logged: losing log lines is better than losing requests.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import orjson

from proxy.accounting.request_report import CallLabels, RequestReport
from proxy.answers import EndCause

CLIENT_CLOSED_STATUS = 499
CLIENT_CLOSED_MESSAGE = b"Client closed connection"
COLLECT_S = 0.05
"""Seconds for which lines are collected for one write."""
_LINE = (
    b'{"time":"%b.%03dZ","message":"%b",%b"status":%d,"request_bytes":%d,"response_bytes":%d,"total_ms":%.3f'
    b',"ours_ms":%.3f,"upstream_ms":%.3f,"request_id":%b%b}\n'
)


class AccessLogWriter:
    """Writes to a file descriptor, which stays open. Call `start` before the first line, `close` after the last."""

    def __init__(self, fd: int, max_pending: int = 100_000) -> None:
        """`max_pending`: how many lines may wait to be written."""
        self._fd = fd
        self._max_pending = max_pending
        self._pending: deque[tuple[int, bytes]] = deque()
        """Numbers of lines, and these lines."""
        # Each of these counters only rises, and only one thread raises it: a line is counted once without a lock.
        self._queued = self._dropped = 0
        self._left_queue = self._not_written = self._reported = 0
        self._wake = threading.Event()
        self._is_woken = False  # mirrors `_wake`, cheaper to read
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, calls: Sequence[RequestReport]) -> None:
        """Enqueue the lines of these calls; never raises, never waits."""
        if self._queued - self._left_queue + len(calls) > self._max_pending:
            self._dropped += len(calls)
            return
        self._queued += len(calls)
        self._pending.append((len(calls), lines_of(calls)))
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
            self._is_woken = False  # before draining, so that lines that come meanwhile wake the thread again
            self._drain()

    def _drain(self) -> None:
        pending = [self._pending.popleft() for _ in range(len(self._pending))]
        count = sum(number for number, _ in pending)
        lines = [lines for _, lines in pending]
        lost_lines = self._dropped + self._not_written
        if lost_lines > self._reported:
            lines.append(b'{"message":"access log lines lost","lines":%d}\n' % (lost_lines - self._reported))
        try:
            _write_all(self._fd, b"".join(lines))
            self._reported = lost_lines
        except OSError:
            self._not_written += count
        self._left_queue += count


def lines_of(calls: Iterable[RequestReport]) -> bytes:
    """A flat JSON line per call, times in milliseconds, unknown fields left out. One loop, because each call costs."""
    lines = []
    text_second = -1
    text = b""
    for call in calls:
        second, ms = divmod(call.ended_at_ms, 1000)
        if second != text_second:  # calls that are written together ended in the same second or two
            text_second = second
            text = _timestamp(second)
        more = b"" if call.first_byte_s is None else b',"first_byte_ms":%.3f' % (call.first_byte_s * 1e3)
        if call.bill is not None:
            more += b',"input_tokens":%d,"output_tokens":%d,"cached_input_tokens":%d' % call.bill.tokens
        if call.end_cause is not None:
            more += _of_cause(call.end_cause)
        if call.trace_id:
            more += b',"trace_id":"%b","span_id":"%b"' % (call.trace_id.encode(), call.span_id.encode())
        line = _LINE % (
            text,
            ms,
            CLIENT_CLOSED_MESSAGE if call.status == CLIENT_CLOSED_STATUS else b"request",
            call.labels.encoded or _encoded(call.labels),
            call.status,
            call.request_bytes,
            call.response_bytes,
            call.duration_s * 1e3,
            call.ours_s * 1e3,
            call.upstream_s * 1e3,
            orjson.dumps(call.request_id),
            more,
        )
        lines.append(line)
    return b"".join(lines)


def _of_cause(cause: EndCause) -> bytes:
    """The cause, and what is known of the limit that refused the call."""
    members = {"cause": cause.name}
    if cause.limit is not None:
        members |= {f"limit_{name}": value for name, value in asdict(cause.limit).items() if value}
    return b"," + orjson.dumps(members)[1:-1]


def _encoded(labels: CallLabels) -> bytes:
    """The method, and other members that are known, each with a comma behind it."""
    members = {
        "path": labels.shown_path,
        "workspace": labels.workspace_id,
        "key_prefix": labels.key_prefix,
        "group": labels.group_id,
        "slug": labels.slug,
        "model_id": labels.model_id,
    }
    present = {name: value for name, value in members.items() if value}
    labels.encoded = orjson.dumps({"method": labels.method} | present)[1:-1] + b","
    return labels.encoded


def _timestamp(second: int) -> bytes:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
