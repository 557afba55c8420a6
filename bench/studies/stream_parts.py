"""The cost of streams in a gateway: CPU per chunk, memory while thousands are open, and the delay of the first byte."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.figures import Findings
from bench.load import Call
from bench.programs.peers import chat_body
from bench.programs.processes import OTHER_CORE, BenchError, rss_mib
from bench.programs.subjects import Rig, Subject, proxy_cpu_s

MANY = 2000
FEW = 100
FRAMES = 100
INTERVAL_MS = 100
"""The pace: `FRAMES` take ten seconds, so that all streams are open at once."""
CHUNK_STREAMS = 1000
CHUNK_FRAMES = 50
ENDING = 2
"""The chunks that the upstream adds: the finish reason, and the usage, which not every caller is passed."""
STEADY = 5000
STEADY_FRAMES = 30
STEADY_INTERVAL_MS = 500
"""The pace: `STEADY_FRAMES` take fifteen seconds; opening 5 000 streams takes six."""
ROUNDS = 5
BEHIND = 500
"""Streams that stay open in the background, at 5 000 chunks a second, while first bytes of others are timed."""
STARTS = 1500
GAP_MS = 2


def measure_floods(subjects: Sequence[Subject], rig: Rig, findings: Findings) -> None:
    """Measure many streams at once through each gateway."""
    for subject in subjects:
        count = FEW if subject.is_python_or_node else MANY
        print(f"  {subject.name:18} {count:4} streams at once", flush=True)
        _run(_flood(subject.call, FEW, frames=20))
        figures = findings.figures[subject.name]
        try:
            figures.streams = measure_flood(subject, rig, count)
        except BenchError as error:
            if subject.name.startswith("tollgate"):
                raise
            findings.missing[f"streams of {subject.name}"] = str(error)
            continue
        figures.loaded_mib = max(figures.loaded_mib, figures.streams["open_mib"])


def measure_flood(subject: Subject, rig: Rig, count: int) -> dict[str, float]:
    """Open `count` streams through one gateway. The figures, CPU per frame and memory among them."""
    heights = [_workers_mib(subject)]
    figures, usage = rig.measure(
        lambda: _run(_flood(subject.call, count), lambda: heights.append(_workers_mib(subject))), subject.parts
    )
    return {
        **figures,
        "cpu_us_per_frame": proxy_cpu_s(usage) * 1e6 / max(figures["frames"], 1),
        "before_mib": heights[0],
        "open_mib": max(heights),
        "kib_per_stream": (max(heights) - heights[0]) * 1024 / count,
    }


def measure_chunks(subjects: Sequence[Subject], rig: Rig, findings: Findings) -> None:
    """Measure the CPU of a chunk that the upstream sends, in rounds."""
    rounds: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for turn in range(ROUNDS):
        for subject in subjects:
            print(f"  {subject.name:18} {CHUNK_STREAMS} streams, round {turn + 1} of {ROUNDS}", flush=True)
            plan = _flood(subject.call, CHUNK_STREAMS, frames=CHUNK_FRAMES)
            _, usage = rig.measure(
                lambda plan=plan: _run_whole(plan),  # type: ignore[misc]  # the default argument binds the loop's value
                subject.parts,
            )
            rounds[subject.name].append(proxy_cpu_s(usage) * 1e6 / (CHUNK_STREAMS * (CHUNK_FRAMES + ENDING)))
    for name, costs_us in rounds.items():
        findings.facts[f"chunk_us {name}"] = costs_us
        findings.notes.append(
            f"a chunk through {name}, {CHUNK_STREAMS} streams, {1000 / INTERVAL_MS:.0f} chunks a second each:"
            f" {statistics.median(costs_us):.1f} CPU µs ({min(costs_us):.1f} to {max(costs_us):.1f})"
        )


def measure_steady(subject: Subject, rig: Rig, findings: Findings) -> None:
    """Open `STEADY` slow streams at once through one worker."""
    print(
        f"  {subject.name:18} {STEADY} streams at once, {1000 / STEADY_INTERVAL_MS:.0f} chunks a second each",
        flush=True,
    )
    plan = _flood(subject.call, STEADY, STEADY_FRAMES, STEADY_INTERVAL_MS)
    figures, usage = rig.measure(lambda: _run(plan), subject.parts)
    cost_us = proxy_cpu_s(usage) * 1e6 / (STEADY * (STEADY_FRAMES + ENDING))
    for name in ("at_once", "stalls", "broken", "refused"):
        findings.facts[f"steady_{name}"] = [figures[name]]
    findings.notes.append(
        f"{STEADY} streams through {subject.name}, {1000 / STEADY_INTERVAL_MS:.0f} chunks a second each:"
        f" {figures['at_once']:,.0f} at once, {figures['stalls']:.0f} stalls, {figures['broken']:.0f} broken off,"
        f" {figures['refused']:.0f} refused, {cost_us:.1f} CPU µs a chunk"
    )


def note_what_was_kept(subjects: Sequence[Subject], findings: Findings) -> None:
    """Record how much of the open streams' memory each gateway still holds after a pause."""
    for subject in subjects:
        streams = findings.figures[subject.name].streams
        if streams:
            taken_mib = max(streams["open_mib"] - streams["before_mib"], 0.1)
            kept_mib = max(_workers_mib(subject) - streams["before_mib"], 0.0)
            streams["kept_percent"] = kept_mib / taken_mib * 100


def _workers_mib(subject: Subject) -> float:
    return rss_mib(subject.parts["worker"]())


def measure_first_bytes(subjects: Sequence[Subject], rig: Rig, findings: Findings) -> None:
    """Measure how much later than over a direct connection the first byte arrives, at p50 and p99, under load.

    Background streams are not in step (bench/programs/upstream.c): an engine that sends a frame of every stream
    at the same moment is another case, in which the number of streams would be the figure.
    """
    added: dict[str, list[tuple[float, float]]] = {subject.name: [] for subject in subjects}
    for turn in range(ROUNDS):
        for subject in subjects:
            print(f"  {subject.name:18} first bytes, round {turn + 1} of {ROUNDS}", flush=True)
            plan = _in_turn(rig.direct, subject.call)
            (direct, ours), _ = rig.measure(
                lambda plan=plan: _run_whole(plan),  # type: ignore[misc]  # the default argument binds the loop's value
                subject.parts,
            )
            added[subject.name].append(
                (
                    ours["first_byte_p50_us"] - direct["first_byte_p50_us"],
                    ours["first_byte_p99_us"] - direct["first_byte_p99_us"],
                )
            )
    for name, rounds in added.items():
        p50_us, p99_us = (statistics.median(column) for column in zip(*rounds, strict=True))
        findings.facts[f"first_byte_added_ms {name}"] = [p99_us / 1000 for _, p99_us in rounds]
        findings.notes.append(
            f"time to first byte through {name}, above a direct connection's, {1000 / GAP_MS:.0f} starts/s with"
            f" {BEHIND} streams open: p50 {p50_us:+,.0f} µs, p99 {p99_us:+,.0f} µs (median of {ROUNDS} rounds)"
        )


def _flood(call: Call, count: int, frames: int = FRAMES, interval_ms: int = INTERVAL_MS) -> Mapping[str, Any]:
    return {"form": "flood", "routes": [_route(call, frames, interval_ms)], "count": count}


def _in_turn(direct: Call, call: Call) -> Mapping[str, Any]:
    short = [_route(direct, 3, 20), _route(call, 3, 20)]
    background = _route(call, FRAMES, INTERVAL_MS)
    return {
        "form": "paced",
        "routes": short,
        "background": background,
        "open": BEHIND,
        "count": STARTS,
        "gap_ms": GAP_MS,
    }


def _route(call: Call, frames: int, interval_ms: int) -> Mapping[str, Any]:
    body = chat_body(call.model, stream=True, ending=f" [{frames} frames every {interval_ms} ms]")
    request = replace(call, body=body)
    headers = dict(request.headers)
    return {"port": request.port, "path": request.path, "body": body, "headers": headers, "interval_ms": interval_ms}


def _run_whole(plan: Mapping[str, Any]) -> Any:
    """Run a plan of which every stream must end whole: on a busy machine some do not, and the plan is run again."""
    figures = _run(plan)
    losses = sum(one["broken"] + one["refused"] for one in (figures if isinstance(figures, list) else [figures]))
    if losses:
        raise BenchError(f"{losses:.0f} streams did not end whole")
    return figures


def _run(plan: Mapping[str, Any], meanwhile: Callable[[], object] = lambda: None) -> Any:
    """Run `bench.studies.streams` as a process on the load's core, and call `meanwhile` once a second."""
    argv = ["taskset", "-c", str(OTHER_CORE), sys.executable, "-m", "bench.studies.streams"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        question: bytes | None = json.dumps(plan).encode()
        deadline = time.monotonic() + 180
        while True:
            try:
                output, complaint = client.communicate(question, timeout=1)
                break
            except subprocess.TimeoutExpired:
                question = None
                meanwhile()
            if time.monotonic() > deadline:
                client.kill()
    if client.returncode:
        raise BenchError(f"the stream client failed: {complaint.decode().strip()[-300:]}")
    return json.loads(output)
