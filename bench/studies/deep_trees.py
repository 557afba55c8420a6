"""CPU of a call with deep trees, many models, many groups and many keys, beside that of a call at ten groups.

`python -m bench.studies.deep_trees [--pairs N] [--rounds N] [--shapes NAME,…] [--folder DIR] [--facts FILE]`. For each
shape of policy a real proxy with one worker. In each round every proxy answers each of N further pairs of key and slug
once, then twice more in another order, with eight callers. Ratios are taken within a round. CPU: worker and supervisor.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import uvloop

from bench.programs.compiled import build
from bench.programs.processes import (
    OTHER_CORE,
    PROXY_CORE,
    BenchError,
    Program,
    answers,
    command_of,
    free_port,
    rss_mib,
    start,
    treat_sigterm_as_interrupt,
    wait_until,
)
from bench.studies.policy_scale import PagedFeed, follow
from bench.usage import cpu_s
from policy.credentials import KeyKind
from policy.endpoints import Target
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.sealing import seal
from policy.snapshot import EndpointRow, KeyRow, Row, SecretRow, WorkspaceRow, group_to_wire
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.records.supervisor.policy_replica import ReplicaVersion
from tests.fakes.control_plane import TOKEN, FakeControl, serve_control
from tests.redis_server import private_redis

CALLERS = 8
KEY_BYTES = b"k" * 32
BASE = "10 groups"


@dataclass(frozen=True, slots=True)
class Shape:
    """Trees of so many levels, the root's included. Each group has all models, with four limits each.

    `width`: groups below each group. `keys`: of each group of the lowest level.
    """

    trees: int
    levels: int
    models: int
    width: int = 1
    keys: int = 1

    @property
    def leaves(self) -> int:
        return int(self.trees * self.width ** (self.levels - 1))

    @property
    def pairs(self) -> int:
        return self.leaves * self.keys * self.models


SHAPES = {
    BASE: Shape(trees=2, levels=5, models=10),
    "20 trees of 1 000 models": Shape(trees=20, levels=5, models=1000),
    "100 trees of 100 models": Shape(trees=100, levels=5, models=100),
    "20 000 groups": Shape(trees=16, levels=5, models=1, width=6),
    "1 000 000 keys": Shape(trees=2, levels=5, models=1, keys=500_000),
}


def key_of(number: int) -> str:
    return f"tg_{number:012d}.{'s' * 27}"


def slug_of(number: int) -> str:
    return f"org/model-{number}"


def models_of(shape: Shape) -> tuple[SlugLimits, ...]:
    rates = (Limit(LimitType.REQUEST, Unit.MINUTE, 10**9), Limit(LimitType.TOKEN, Unit.MINUTE, 10**12))
    days = (Limit(LimitType.REQUEST, Unit.DAY, 10**9), Limit(LimitType.TOKEN, Unit.DAY, 10**12))
    return tuple(SlugLimits(slug_of(number), rates, days) for number in range(shape.models))


def group_rows(shape: Shape) -> Iterator[Row]:
    """All groups of all trees, level by level. Those of the lowest level are `leaf_of(number)`."""
    models = models_of(shape)
    for level in range(shape.levels):
        for number in range(shape.trees * shape.width**level):
            parent = f"grp_{level - 1}_{number // shape.width:07d}" if level else None
            place = (f"grp_{level}_{number:07d}", "ws_1", parent, f"customer-{level}-{number}", Enforcement.CASCADING)
            yield Row("group", place[0], 1, group_to_wire(Group(*place, models)))


def rows(shape: Shape) -> Iterator[Row]:
    yield Row("workspace", "ws_1", 1, WorkspaceRow("ws_1", "active", "pro", True).to_wire())
    sealed = seal((KEY_BYTES,), "sec_1", "sk-bench", bytes(12))
    yield Row("secret", "sec_1", 1, SecretRow("sec_1", "ws_1", sealed).to_wire())
    for number in range(shape.models):
        target = Target("VENDOR_B", secret_id="sec_1", target_model="gpt")
        endpoint = EndpointRow(slug_of(number), f"ep_{number}", "ws_1", target)
        yield Row("endpoint", endpoint.slug, 1, endpoint.to_wire())
    yield from group_rows(shape)
    for number in range(shape.leaves * shape.keys):
        digest = hashlib.sha256(key_of(number).encode()).hexdigest()
        leaf = f"grp_{shape.levels - 1}_{number % shape.leaves:07d}"
        key = KeyRow(digest, f"tg_{number:012d}", KeyKind.FEDERATED, "ws_1", leaf)
        yield Row("key", digest, 1, key.to_wire())


def request_of(shape: Shape, pair: int) -> bytes:
    """A chat completion of a pair of key and slug, as an SDK sends it."""
    key = key_of(pair // shape.models)
    slug = slug_of(pair % shape.models)
    body = b'{"model":"%b","messages":[{"role":"user","content":"What does the quick brown fox do?"}],"max_tokens":64}'
    body %= slug.encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8080\r\n"
        f"authorization: Bearer {key}\r\ncontent-type: application/json\r\naccept: application/json\r\n"
        f"user-agent: OpenAI/Python 2.8.1\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class NoEvents(list[dict[str, Any]]):
    """Says that it has each event already, so that `FakeControl` adds none."""

    def __contains__(self, event: object) -> bool:
        return True


class Caller(asyncio.Protocol):
    """Sends requests one after another on one connection, each with the answer to the one before."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._answer = b""
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0) if end else 0
        if not end or len(body) < length:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.end.set_exception(BenchError(f"a call failed: {self._answer[:300]!r}"))
            self._transport.close()
            return
        self._answer = b""
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.end.done():
            self.end.set_exception(BenchError("the proxy closed a connection"))

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.end.set_result(None)
            self._transport.close()
        else:
            self._transport.write(request)


@dataclass(slots=True)
class Subject:
    """A proxy with a policy of one shape, and what its calls cost in each round."""

    shape: Shape
    program: Program
    port: int
    pairs: list[int]
    """Pairs that were not called yet, shuffled, as often as needed."""
    first_us: list[float] = field(default_factory=list)
    again_us: list[float] = field(default_factory=list)

    def pids(self) -> list[int]:
        return [pid for pid in self.program.pids() if "async_worker" not in command_of(pid)]

    @property
    def worker_mib(self) -> float:
        return rss_mib([pid for pid in self.pids() if "proxy.worker" in command_of(pid)])

    async def cost_us(self, pairs: Sequence[int]) -> float:
        """CPU of a call, by calls of these pairs."""
        requests = iter([request_of(self.shape, pair) for pair in pairs])
        loop = asyncio.get_running_loop()
        before_s = cpu_s(self.pids())
        callers = [
            (await loop.create_connection(lambda: Caller(requests), "127.0.0.1", self.port))[1] for _ in range(CALLERS)
        ]
        await asyncio.gather(*[caller.end for caller in callers])
        await asyncio.sleep(0.3)  # journal and counts are sent on
        return (cpu_s(self.pids()) - before_s) * 1e6 / len(pairs)

    async def measure(self, count: int) -> None:
        """One round with the next `count` pairs. Where a shape has fewer, they are called again."""
        pairs = [self.pairs[number % len(self.pairs)] for number in range(count)]
        self.pairs = self.pairs[count:] or self.pairs
        self.first_us.append(await self.cost_us(pairs))
        again = [*random.sample(pairs, count), *random.sample(pairs, count)]
        await self.cost_us(again[:count])  # a head is kept when it comes a second time
        self.again_us.append(await self.cost_us(again))


async def start_subject(stack: AsyncExitStack, folder: Path, shape: Shape, environ: dict[str, str]) -> Subject:
    """Build the replica, and start a proxy on it."""
    os.mkdir(folder)
    replica = PolicyReplica(folder / "replica.db")
    await follow(replica, PagedFeed(rows(shape), ReplicaVersion("epoch", 1), reset=True))
    replica.close()
    port = free_port()
    admin = free_port()
    argv = [sys.executable, "-m", "proxy", "--proxy-port", str(port), "--admin-port", str(admin), "--workers", "1"]
    environ = environ | {
        "TOLLGATE_REPLICA_PATH": str(folder / "replica.db"),
        "TOLLGATE_JOURNAL_DIR": str(folder / "journal"),
    }
    program = start("proxy", argv, PROXY_CORE, folder / "proxy.log", environ)
    stack.callback(program.stop)
    await asyncio.to_thread(wait_until, lambda: answers(port), f"the proxy ({folder}/proxy.log)")
    pairs = random.sample(range(shape.pairs), min(shape.pairs, 200_000))
    return Subject(shape, program, port, pairs)


def start_upstream(stack: ExitStack, folder: Path) -> int:
    port = free_port()
    program = start("upstream", [str(build("upstream")), str(port)], OTHER_CORE, folder / "upstream.log")
    stack.callback(program.stop)
    wait_until(lambda: answers(port), "the upstream")
    return port


async def measure(folder: Path, names: Sequence[str], pairs: int, rounds: int) -> dict[str, Subject]:
    os.sched_setaffinity(0, {OTHER_CORE})
    async with AsyncExitStack() as stack:
        upstream = start_upstream(stack.enter_context(ExitStack()), folder)
        redis = stack.enter_context(private_redis())
        control = await stack.enter_async_context(
            serve_control(FakeControl(epoch="epoch", revision=1, events=NoEvents()))
        )
        environ = {
            "TOLLGATE_REDIS_URL": redis.url,
            "TOLLGATE_CONTROL_URL": control,
            "TOLLGATE_INTERNAL_TOKEN": TOKEN,
            "TOLLGATE_SECRET_KEY": b64encode(KEY_BYTES).decode(),
            "TOLLGATE_VENDOR_B_BASE_URL": f"http://127.0.0.1:{upstream}",
            "TOLLGATE_ASYNC_WORKERS": "0",
            "TOLLGATE_REDIS_TIMEOUT_S": "1",  # a busy machine may measure, too
        }
        subjects = {
            name: await start_subject(stack, folder / f"shape-{number}", SHAPES[name], environ)
            for number, name in enumerate(names)
        }
        for turn in range(rounds + 1):
            for subject in subjects.values():
                await subject.measure(pairs)
                if turn == 0:  # the first round warms up what is the same for all
                    subject.first_us.clear()
                    subject.again_us.clear()
        for name, subject in subjects.items():
            print(f"{name}: worker {subject.worker_mib:.0f} MiB", flush=True)
        return subjects


def report(subjects: dict[str, Subject]) -> dict[str, list[float]]:
    """Print what calls cost, and return the ratios of each round."""
    base = subjects[BASE]
    facts = dict[str, list[float]]()
    for name, subject in subjects.items():
        again = [mine / theirs for mine, theirs in zip(subject.again_us, base.again_us, strict=True)]
        first = [mine / theirs for mine, theirs in zip(subject.first_us, base.again_us, strict=True)]
        facts |= {f"again {name}": again, f"first {name}": first}
        print(
            f"{name}: {statistics.median(subject.again_us):.0f} µs, {statistics.median(again):.2f} times"
            f" ({min(again):.2f} to {max(again):.2f}); first call {statistics.median(subject.first_us):.0f} µs,"
            f" {statistics.median(first):.2f} times ({min(first):.2f} to {max(first):.2f})",
            flush=True,
        )
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="some of the shapes; the first is always measured")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--facts", type=Path, help="also write the ratios to this file, as JSON")
    options = parser.parse_args()
    treat_sigterm_as_interrupt()
    names = [name for name in SHAPES if name == BASE or name in options.shapes.split(",")]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        facts = report(uvloop.run(measure(Path(folder), names, options.pairs, options.rounds)))
    if options.facts is not None:
        options.facts.write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
