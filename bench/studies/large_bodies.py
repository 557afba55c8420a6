"""Measures large bodies, and what a burst of streams leaves: `python -m bench.studies.large_bodies`, two minutes.

First the CPU of a call with a prompt of 60 bytes, 100 kB and 400 kB through Tollgate and nginx, in turn, kernel time
included. Then the worker's memory before, during and after 2 000 streams at once.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.load import Call, run_wrk
from bench.programs.gateway import Gateway, start_gateway
from bench.programs.peers import CHAT, chat_body, start_nginx
from bench.programs.processes import rss_mib, treat_sigterm_as_interrupt
from bench.programs.subjects import Rig, own, start_rig
from bench.studies.stream_parts import measure_flood
from bench.usage import cpu_s

SIZES = (60, 100_000, 400_000)
CONNECTIONS, SECONDS, ROUNDS = 8, 2, 5
STREAMS = 2000
IDLE_S = 75
"""Longer than idle upstream connections are kept: with the last of them a worker gives memory back."""

Subjects = Mapping[str, tuple[Call, Callable[[], list[int]]]]


def main() -> None:
    treat_sigterm_as_interrupt()
    with tempfile.TemporaryDirectory(prefix="tollgate-bodies-") as folder, ExitStack() as stack:
        scratch = Path(folder)
        rig = start_rig(stack, lambda port: Call(port, CHAT, chat_body("bench")), scratch, may_be_shared=True)
        # A busy machine must not turn calls into 503s: that is another question.
        settings = {"TOLLGATE_REDIS_TIMEOUT_S": "1"}
        gateway = start_gateway(rig.direct.port, scratch, settings=settings)
        stack.callback(gateway.program.stop)
        nginx = start_nginx(rig.direct.port, scratch)
        stack.callback(nginx.program.stop)
        subjects: Subjects = {
            "governed": (gateway.governed, lambda: gateway.pids("worker") + gateway.pids("supervisor")),
            "nginx": (nginx.call, nginx.program.pids),
        }
        for size in SIZES:
            _measure_prompts(subjects, size, scratch)
        _measure_burst(gateway, rig)


def _measure_prompts(subjects: Subjects, size: int, scratch: Path) -> None:
    costs: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(ROUNDS + 1):
        for name, (call, pids) in subjects.items():
            large = replace(call, body=chat_body(call.model, prompt_bytes=size))
            before_us = cpu_s(pids()) * 1e6
            load = run_wrk(large, CONNECTIONS, SECONDS, scratch)
            if turn:  # the first round warms up
                costs[name].append((cpu_s(pids()) * 1e6 - before_us) / load.requests)
    for name, taken in costs.items():
        low, high = min(taken), max(taken)
        print(f"{size:7,} bytes  {name:9} {statistics.median(taken):7.1f} µs ({low:.1f} to {high:.1f})", flush=True)
    governed, nginx = (statistics.median(costs[name]) for name in ("governed", "nginx"))
    print(f"{size:7,} bytes  {governed / nginx:.2f} times nginx's", flush=True)


def _measure_burst(gateway: Gateway, rig: Rig) -> None:
    subject = own(gateway, "governed", gateway.governed)
    measure_flood(subject, rig, 100)  # warms up
    seen = measure_flood(subject, rig, STREAMS)
    taken_mib = seen["open_mib"] - seen["before_mib"]
    print(f"{STREAMS} streams took {taken_mib:.1f} MiB, {seen['kib_per_stream']:.1f} KiB each", flush=True)
    time.sleep(IDLE_S)
    kept_mib = rss_mib(gateway.pids("worker")) - seen["before_mib"]
    print(f"after {IDLE_S} s {kept_mib:.1f} MiB of it are kept: {kept_mib / taken_mib:.0%}")


if __name__ == "__main__":
    main()
