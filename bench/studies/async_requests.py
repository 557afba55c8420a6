"""The cost of an asynchronous request, beside a plain arq queue: `python -m bench.studies.async_requests`.

Both accept by HTTP, keep the request in Redis (append-only file, a sync each second), post it to the same mock replica,
keep its status for an hour and post the result to the same webhook over TLS, signed by Tollgate alone. CPU of all
processes per request, kernel time included, Redis apart; then how long a request takes to its replica, and how many
requests a second the whole carries. One web process and one worker process each, on the same core.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import aiohttp

from bench.programs.gateway import Api, Gateway, make_workspace, start_gateway
from bench.programs.peers import start_arq
from bench.programs.processes import (
    OTHER_CORE,
    PROXY_CORE,
    BenchError,
    answers,
    free_port,
    pin,
    start,
    wait_until,
)
from bench.usage import cpu_s
from tests.fakes.throwaway_ca import ThrowawayCa

HOST = "hooks.example.com"
WORKSPACES = 8
"""A workspace may make 12 000 requests a minute."""
RATE_PER_S = 100
REQUESTS = 1500
FLOOD_CONNECTIONS = 32
IDLE_S = 4.0
DRAIN_S = 120.0
TRIES = 5
PAUSE_S = 0.3

Pids = Callable[[], list[int]]


@dataclass(frozen=True, slots=True)
class Mock:
    """The replica and the webhook's receiver."""

    port: int
    tls_port: int
    ca: ThrowawayCa

    def take(self) -> tuple[list[float], int]:
        """Seconds to the replica, and messages, since the last time."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/figures", timeout=30) as answer:
            figures = json.load(answer)
        return figures["waits_s"], figures["messages"]


@dataclass(frozen=True, slots=True)
class Subject:
    """One of the two. `targets`: URL and headers of `async_predict`, used in turn."""

    name: str
    targets: Sequence[tuple[str, Mapping[str, str]]]
    webhook: str
    pids: Pids
    redis_pids: Pids


@dataclass
class Figures:
    """A figure per round."""

    cpu_us: list[float] = field(default_factory=list)
    redis_us: list[float] = field(default_factory=list)
    idle_ms_per_s: list[float] = field(default_factory=list)
    wait_ms: list[float] = field(default_factory=list)
    wait_p99_ms: list[float] = field(default_factory=list)
    accepted_per_s: list[float] = field(default_factory=list)
    done_per_s: list[float] = field(default_factory=list)


async def submit(subject: Subject, count: int, rate_per_s: float, bytes_: int, connections: int) -> float:
    """Submit `count` requests at this rate. Returns the seconds until the last one was accepted."""
    targets = cycle(subject.targets)
    filling = "x" * bytes_
    timeout = aiohttp.ClientTimeout(total=60)
    limit = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(timeout=timeout, connector=limit) as session:
        began = time.monotonic()

        async def one(number: int) -> None:
            await asyncio.sleep(began + number / rate_per_s - time.monotonic())
            url, headers = next(targets)
            body = {"model_input": {"sent": time.monotonic(), "text": filling}, "webhook_endpoint": subject.webhook}
            for _ in range(TRIES):  # on a busy machine the counters' deadline passes now and then
                async with session.post(url, json=body, headers=headers) as answer:
                    if answer.status == 201:
                        return
                    message = f"{subject.name} answered {answer.status}: {(await answer.text())[:200]}"
                print(f"    {message}", flush=True)
                await asyncio.sleep(PAUSE_S)
            raise BenchError(message)

        await asyncio.gather(*map(one, range(count)))
        return time.monotonic() - began


def drained(mock: Mock, subject: Subject, count: int) -> list[float]:
    """Wait until the webhook has got `count` messages. Returns the seconds that requests took to the replica."""
    waits: list[float] = []
    messages = 0
    ends_at = time.monotonic() + DRAIN_S
    while messages < count:
        if time.monotonic() > ends_at:
            raise BenchError(f"{subject.name}: {messages} of {count} results were delivered in {DRAIN_S:.0f} s")
        time.sleep(0.1)
        more, deliveries = mock.take()
        waits += more
        messages += deliveries
    return waits


def measure_cost(mock: Mock, subject: Subject, figures: Figures, bytes_: int) -> None:
    """CPU per request at a fixed rate, and in idleness."""
    before = cpu_s(subject.pids())
    idle = time.monotonic()
    time.sleep(IDLE_S)
    figures.idle_ms_per_s.append((cpu_s(subject.pids()) - before) * 1e3 / (time.monotonic() - idle))
    mock.take()
    before = cpu_s(subject.pids())
    redis_before = cpu_s(subject.redis_pids())
    asyncio.run(submit(subject, REQUESTS, RATE_PER_S, bytes_, 8))
    waits = drained(mock, subject, REQUESTS)
    figures.cpu_us.append((cpu_s(subject.pids()) - before) * 1e6 / REQUESTS)
    figures.redis_us.append((cpu_s(subject.redis_pids()) - redis_before) * 1e6 / REQUESTS)
    figures.wait_ms.append(statistics.median(waits) * 1e3)
    figures.wait_p99_ms.append(statistics.quantiles(waits, n=100)[98] * 1e3)
    print(
        f"  {subject.name:9} {figures.cpu_us[-1]:7.0f} µs a request, Redis {figures.redis_us[-1]:5.0f} µs, idle"
        f" {figures.idle_ms_per_s[-1]:5.1f} ms/s, to the replica {figures.wait_ms[-1]:6.1f} ms"
        f" (p99 {figures.wait_p99_ms[-1]:.0f})",
        flush=True,
    )


def measure_flood(mock: Mock, subject: Subject, figures: Figures, bytes_: int) -> None:
    """Measure how many a second are accepted, and done, when callers ask as fast as they can."""
    mock.take()
    count = 2 * REQUESTS
    began = time.monotonic()
    accepted_s = asyncio.run(submit(subject, count, 1e9, bytes_, FLOOD_CONNECTIONS))
    drained(mock, subject, count)
    figures.accepted_per_s.append(count / accepted_s)
    figures.done_per_s.append(count / (time.monotonic() - began))
    print(
        f"  {subject.name:9} accepted {figures.accepted_per_s[-1]:.0f}/s, done {figures.done_per_s[-1]:.0f}/s",
        flush=True,
    )


def start_mock(stack: ExitStack, scratch: Path) -> Mock:
    ca = ThrowawayCa(scratch)
    ca.server_context(HOST, "localhost")
    port = free_port()
    tls_port = free_port()
    argv = [sys.executable, "-m", "bench.programs.async_mock", str(port), str(tls_port), str(scratch / f"{HOST}.pem")]
    program = start("mock", argv, OTHER_CORE, scratch / "mock.log")
    stack.callback(program.stop)
    wait_until(lambda: answers(port) and answers(tls_port), "the mock")
    return Mock(port, tls_port, ca)


def start_tollgate(stack: ExitStack, mock: Mock, scratch: Path) -> Subject:
    allowed = f"127.0.0.0/8,{HOST}=127.0.0.1:{mock.tls_port}"
    settings = {"TOLLGATE_EGRESS_ALLOW": allowed, "TOLLGATE_EGRESS_CA_FILE": str(mock.ca.ca_file)}
    gateway = start_gateway(mock.port, scratch, settings=settings | {"TOLLGATE_ASYNC_WORKERS": "1"})
    stack.callback(gateway.program.stop)

    def pids() -> list[int]:
        return [pid for part in ("worker", "async worker", "supervisor", "control") for pid in gateway.pids(part)]

    pin(pids(), PROXY_CORE)
    targets = [_target(gateway, mock, number) for number in range(WORKSPACES)]
    return Subject("tollgate", targets, f"https://{HOST}/in", pids, lambda: gateway.pids("redis"))


def _target(gateway: Gateway, mock: Mock, number: int) -> tuple[str, Mapping[str, str]]:
    """A workspace with one model."""
    key = make_workspace(gateway.data, f"async-{number}")
    api = Api(f"http://127.0.0.1:{gateway.control_port}", key)
    model = api.post("/v1/models", {"name": "m"})["id"]
    deployment = api.post(f"/v1/models/{model}/deployments", {"name": "d"})["id"]
    replicas = {"replicas": [f"http://127.0.0.1:{mock.port}"]}
    api.post(f"/v1/models/{model}/deployments/{deployment}/replicas", replicas, "PUT")
    api.post(f"/v1/models/{model}/environments/production", {"deployment_id": deployment}, "PUT")
    api.post("/v1/async/webhook_secret", {})
    url = f"http://127.0.0.1:{gateway.open.port}/models/{model}/production/async_predict"
    return url, {"authorization": f"Bearer {key}"}


def start_peer(stack: ExitStack, mock: Mock, scratch: Path) -> Subject:
    peer = start_arq(stack, f"http://127.0.0.1:{mock.port}/predict", mock.ca.ca_file, scratch)

    def pids() -> list[int]:
        return [*peer.web.pids(), *peer.worker.pids()]

    return Subject("arq", [(peer.url, {})], f"https://localhost:{mock.tls_port}/in", pids, peer.redis.pids)


def report(all_figures: Mapping[str, Figures]) -> None:
    for name in Figures.__dataclass_fields__:
        line = []
        for subject, figures in all_figures.items():
            values: list[float] = sorted(getattr(figures, name))
            if values:
                line.append(f"{subject} {statistics.median(values):.1f} ({values[0]:.1f} to {values[-1]:.1f})")
        print(f"{name}: {', '.join(line)}")
    own = all_figures["tollgate"].cpu_us
    peer = all_figures["arq"].cpu_us
    ratios = sorted(one / two for one, two in zip(own, peer, strict=True))
    print(f"CPU of a request: {statistics.median(ratios):.2f} times arq's ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def main() -> None:
    """Measure both in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=1000, help="of a model_input")
    options = parser.parse_args()
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        scratch = Path(folder)
        mock = start_mock(stack, scratch)
        subjects = [start_tollgate(stack, mock, scratch), start_peer(stack, mock, scratch)]
        figures = {subject.name: Figures() for subject in subjects}
        for measure in (measure_cost, measure_flood):
            for _ in range(options.rounds):
                for subject in subjects:
                    measure(mock, subject, figures[subject.name], options.bytes)
        report(figures)


if __name__ == "__main__":
    main()
