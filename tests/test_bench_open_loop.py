"""The load in an open loop: a call's latency counts from when it was due, and failed calls are seen."""

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.figures import Findings
from bench.goals import GOALS
from bench.latency import http_request
from bench.load import Call
from bench.programs.compiled import build

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc (Debian packages gcc and libc6-dev)")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
REFUSED = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"
PAUSE_S = 0.2


def serve(caller: socket.socket, answer: bytes, pause_at: int) -> None:
    """Answer each request, in two pieces; the request number `pause_at` late."""
    with caller:
        number = 0
        while caller.recv(65536):
            if number == pause_at:
                time.sleep(PAUSE_S)
            number += 1
            caller.sendall(answer[:20])
            caller.sendall(answer[20:])


@contextmanager
def server(answer: bytes, pause_at: int = -1) -> Iterator[int]:
    """A server with a thread per connection; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return  # the listener is closed
                threading.Thread(target=serve, args=(caller, answer, pause_at)).start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()


def run(port: int, rate: int = 100, seconds: float = 0.5) -> dict[str, float]:
    request = http_request(Call(port, "/", "{}"))
    argv = [str(build("open_loop")), str(port), str(rate), str(seconds)]
    process = subprocess.run(argv, input=request, capture_output=True, timeout=60, check=True)
    report: dict[str, float] = json.loads(process.stdout)
    return report


@pytest.mark.parametrize("answer", [OK, CHUNKED])
def test_each_due_call_is_made_and_answered(answer: bytes) -> None:
    with server(answer) as port:
        report = run(port)
    assert (report["requests"], report["failed"]) == (50, 0)
    assert 0 < report["p50_us"] <= report["p99_us"] <= report["p999_us"] <= report["most_us"]


def test_pause_of_one_answer_shows_in_its_latency() -> None:
    with server(OK, pause_at=3) as port:
        assert run(port)["most_us"] >= PAUSE_S * 1e6


def test_refused_calls_are_failed() -> None:
    with server(REFUSED) as port:
        request = http_request(Call(port, "/", "{}"))
        argv = [str(build("open_loop")), str(port), "100", "0.2"]
        process = subprocess.run(argv, input=request, capture_output=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (1, b"open_loop: none of 20 calls was answered\n")


def added(ours: list[float], envoys: list[float]) -> str:
    findings = Findings("a machine", ())
    findings.facts = {"added p99_us tollgate_governed": ours, "added p99_us envoy": envoys}
    (line,) = [goal.line(findings) for goal in GOALS if goal.claim.startswith("latency added at p99")]
    return line


def test_added_latency_is_compared_round_by_round() -> None:
    assert added([140.0, 210.0], [100.0, 150.0]).endswith("goal ≤ 1.5, measured 1.4: held")


def test_added_latency_below_zero_is_not_a_measurement() -> None:
    assert "NOT MEASURED (added p99_us envoy was not above 0 in each round" in added([200.0, 300.0], [-10.0, 150.0])
