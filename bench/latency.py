"""The latency that a gateway adds at a steady rate: bench/programs/open_loop.c, beside calls to the upstream itself."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Findings, Measured
from bench.load import Call
from bench.programs.compiled import build
from bench.programs.processes import OTHER_CORE, BenchError
from bench.programs.subjects import Rig, Subject
from bench.quiet import Watched

RATE_PER_S = 500
SECONDS = 8
ROUNDS = 5
DIRECT = "direct"
QUANTILES = {"p50_us": "p50", "p99_us": "p99", "p999_us": "p99.9"}


def measure_latencies(subjects: Sequence[Subject], rig: Rig, findings: Findings, scratch: Path) -> None:
    """Measure in rounds; a gateway's added latency is its quantile above the direct call's of the same round."""
    latencies: dict[str, list[Mapping[str, float]]] = {name: [] for name in (DIRECT, *(one.name for one in subjects))}
    with _real_time(rig.upstream.pids()) as is_real_time:
        for turn in range(ROUNDS):
            print(f"  {RATE_PER_S} calls/s, round {turn + 1} of {ROUNDS}", flush=True)
            latencies[DIRECT].append(measure_latency(rig.direct, {}, rig, scratch))
            for subject in subjects:
                latencies[subject.name].append(measure_latency(subject.call, subject.parts, rig, scratch))
    for name, rounds in latencies.items():
        findings.notes.append(f"latency of {name} at {RATE_PER_S} calls/s, open loop: {_quantiles(rounds)}")
        if name == DIRECT:
            continue
        above = [
            {key: ours[key] - direct[key] for key in QUANTILES}
            for ours, direct in zip(rounds, latencies[DIRECT], strict=True)
        ]
        findings.notes.append(f"added by {name}: {_quantiles(above)}")
        for key in QUANTILES:
            findings.facts[f"added {key} {name}"] = [figures[key] for figures in above]
    if not is_real_time:
        findings.notes.append(
            "load and upstream could not run with real-time priority: other programs delayed them too"
        )


def measure_latency(
    call: Call, parts: Watched, rig: Rig, scratch: Path, rate_per_s: int = RATE_PER_S
) -> Mapping[str, float]:
    """The latencies of calls at a steady rate for `SECONDS`. Raises `BenchError` if any of them failed."""
    request = scratch / "open_loop.request"
    request.write_bytes(http_request(call))
    argv = ["taskset", "-c", str(OTHER_CORE), str(build("open_loop")), *map(str, (call.port, rate_per_s, SECONDS))]

    def load() -> Mapping[str, float]:
        with request.open("rb") as calls_file:
            process = subprocess.run(
                argv, stdin=calls_file, capture_output=True, text=True, timeout=SECONDS + 60, check=False
            )
        if process.returncode:
            raise BenchError(f"the load in an open loop failed: {process.stderr.strip()[-300:]}")
        figures: Mapping[str, float] = json.loads(process.stdout)
        if figures["failed"]:
            raise BenchError(f"{figures['failed']:.0f} of {figures['requests']:.0f} calls in an open loop failed")
        return figures

    return rig.measure(load, parts)[0]


def http_request(call: Call) -> bytes:
    """The call as it is sent."""
    fields = {"host": f"127.0.0.1:{call.port}", "content-type": "application/json", **call.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    body = call.body.encode()
    return f"POST {call.path} HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body


def _quantiles(rounds: Sequence[Mapping[str, float]]) -> str:
    texts = []
    for key, name in QUANTILES.items():
        figure = Measured.of([figures[key] for figures in rounds])
        texts.append(f"{name} {figure.median:,.0f} µs ({figure.least:,.0f} to {figure.most:,.0f})")
    return ", ".join(texts)


@contextmanager
def _real_time(pids: Sequence[int]) -> Iterator[bool]:
    """Give the upstream real-time priority, where that is permitted: it stands for another machine."""
    try:
        for pid in pids:
            os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        for pid in pids:
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
