"""Calls, memory and changes of policy with large policies and with spend limits, beside those at ten groups.

`python -m bench.studies.deep_trees [--pairs N] [--rounds N] [--shapes NAME,…] [--folder DIR] [--facts FILE]`. Each
shape has a real proxy. In a round it answers N further pairs of key and slug once, then twice more in another order,
with eight callers; ratios of CPU (worker and supervisor) are taken within a round. Then policy is changed.
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
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import aiohttp
import redis.asyncio
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
from control.edges.redis.hints import CHANNEL
from policy.credentials import KeyKind
from policy.endpoints import Target
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.prices import Price, token_prices
from policy.sealing import seal
from policy.snapshot import EndpointRow, KeyRow, PriceRow, Row, RowKind, SecretRow, WorkspaceRow, group_to_wire
from policy.spend.limits import SpendLimit, spend_limit_to_wire
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.records.supervisor.policy_replica import ReplicaVersion
from tests.fakes.control_plane import TOKEN, FakeControl, serve_control
from tests.redis_server import private_redis

CALLERS = 8
KEY_BYTES = b"k" * 32
BASE = "10 groups"
LATEST_CHANGE_S = 30
CLOSED = Limit(LimitType.REQUEST, Unit.MINUTE, 0)
"""A limit that refuses every call."""
SPEND_LIMITS = tuple([SpendLimit(unit, Decimal(10**9), "EUR") for unit in (Unit.DAY, Unit.MONTH)])


@dataclass(frozen=True, slots=True)
class Shape:
    """Trees of so many levels, the root's included. Each group has all models, with four limits each.

    `width`: groups below each group. `keys`: of each group of the lowest level. `models`: of each workspace, among
    which the trees are divided. `spends`: models have prices, and groups SOFT spend limits of a day and a month.
    """

    trees: int
    levels: int
    models: int
    width: int = 1
    keys: int = 1
    workspaces: int = 1
    spends: bool = False

    @property
    def leaves(self) -> int:
        return int(self.trees * self.width ** (self.levels - 1))

    @property
    def pairs(self) -> int:
        return self.leaves * self.keys * self.models

    def workspace_of(self, level: int, number: int) -> int:
        """The workspace of a group, by its place in its level."""
        return int(number // self.width**level % self.workspaces)


SHAPES = {
    BASE: Shape(trees=2, levels=5, models=10),
    "20 trees of 1 000 models": Shape(trees=20, levels=5, models=1000),
    "100 trees of 100 models": Shape(trees=100, levels=5, models=100),
    "20 000 groups": Shape(trees=16, levels=5, models=1, width=6),
    "1 000 000 keys": Shape(trees=2, levels=5, models=1, keys=500_000),
    "100 000 groups": Shape(trees=65, levels=5, models=1, width=6),
    "10 000 endpoints": Shape(trees=1, levels=5, models=10_000, keys=10),
    "64 workspaces": Shape(trees=128, levels=5, models=10, keys=20, workspaces=64),
    "spend limits": Shape(trees=2, levels=5, models=10, spends=True),
}


def key_of(number: int) -> str:
    return f"tg_{number:012d}.{'s' * 27}"


def slug_of(workspace: int, number: int) -> str:
    return f"org-{workspace}/model-{number}"


def workspace_id(workspace: int) -> str:
    return f"ws_{workspace}"


def models_of(shape: Shape, workspace: int) -> tuple[SlugLimits, ...]:
    rates = (Limit(LimitType.REQUEST, Unit.MINUTE, 10**9), Limit(LimitType.TOKEN, Unit.MINUTE, 10**12))
    days = (Limit(LimitType.REQUEST, Unit.DAY, 10**9), Limit(LimitType.TOKEN, Unit.DAY, 10**12))
    return tuple([SlugLimits(slug_of(workspace, number), rates, days) for number in range(shape.models)])


def group_row(shape: Shape, level: int, number: int, models: tuple[SlugLimits, ...]) -> Row:
    parent = f"grp_{level - 1}_{number // shape.width:07d}" if level else None
    workspace = workspace_id(shape.workspace_of(level, number))
    place = (f"grp_{level}_{number:07d}", workspace, parent, f"customer-{level}-{number}", Enforcement.CASCADING)
    body = group_to_wire(Group(*place, models))
    if shape.spends:
        body["spend_limits"] = [spend_limit_to_wire(limit) for limit in SPEND_LIMITS]
    return Row(RowKind.GROUP, place[0], 1, body)


def group_rows(shape: Shape) -> Iterator[Row]:
    """All groups of all trees, level by level."""
    models = [models_of(shape, workspace) for workspace in range(shape.workspaces)]
    for level in range(shape.levels):
        for number in range(shape.trees * shape.width**level):
            yield group_row(shape, level, number, models[shape.workspace_of(level, number)])


def key_row(shape: Shape, number: int) -> Row:
    digest = hashlib.sha256(key_of(number).encode()).hexdigest()
    level = shape.levels - 1
    leaf = number % shape.leaves
    workspace = workspace_id(shape.workspace_of(level, leaf))
    key = KeyRow(digest, f"tg_{number:012d}", KeyKind.FEDERATED, workspace, f"grp_{level}_{leaf:07d}")
    return Row(RowKind.KEY, digest, 1, key.to_wire())


def workspace_rows(shape: Shape, workspace: int) -> Iterator[Row]:
    """A workspace with its secret, its endpoints and their prices."""
    id = workspace_id(workspace)
    secret = f"sec_{workspace}"
    yield Row(RowKind.WORKSPACE, id, 1, WorkspaceRow(id, "active", "pro", True).to_wire())
    sealed = seal((KEY_BYTES,), secret, "sk-bench", bytes(12))
    yield Row(RowKind.SECRET, secret, 1, SecretRow(secret, id, sealed).to_wire())
    for number in range(shape.models):
        target = Target("VENDOR_B", secret_id=secret, target_model="gpt")
        endpoint = EndpointRow(slug_of(workspace, number), f"ep_{workspace}_{number}", id, target)
        yield Row(RowKind.ENDPOINT, endpoint.slug, 1, endpoint.to_wire())
        if shape.spends:
            price = Price(endpoint.slug, 0, "EUR", token_prices(Decimal("1.5"), Decimal(6)))
            yield Row(RowKind.PRICE, endpoint.slug, 1, PriceRow(endpoint.slug, id, (price,)).to_wire())


def rows(shape: Shape) -> Iterator[Row]:
    for workspace in range(shape.workspaces):
        yield from workspace_rows(shape, workspace)
    yield from group_rows(shape)
    yield from (key_row(shape, number) for number in range(shape.leaves * shape.keys))


def request_of(shape: Shape, pair: int) -> bytes:
    """A chat completion of a pair of key and slug, as an SDK sends it."""
    number = pair // shape.models
    slug = slug_of(shape.workspace_of(shape.levels - 1, number % shape.leaves), pair % shape.models)
    body = b'{"model":"%b","messages":[{"role":"user","content":"What does the quick brown fox do?"}],"max_tokens":64}'
    body %= slug.encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8080\r\n"
        f"authorization: Bearer {key_of(number)}\r\ncontent-type: application/json\r\naccept: application/json\r\n"
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
    control: FakeControl
    hints: redis.asyncio.Redis
    pairs: list[int]
    """Pairs that were not called yet, shuffled, as often as needed."""
    first_us: list[float] = field(default_factory=list)
    again_us: list[float] = field(default_factory=list)
    mib: float = 0
    """The worker's memory after all rounds."""
    change_ms: list[float] = field(default_factory=list)
    """The times from a change to the first answer that shows it."""

    def pids(self) -> list[int]:
        return [pid for pid in self.program.pids() if "async_worker" not in command_of(pid)]

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

    async def change(self) -> None:
        """Revoke a key and close a group to a slug, and undo each; note how long each took to show in answers."""
        shape = self.shape
        key = key_row(shape, 0)
        leaf = (shape.levels - 1, 0)
        models = models_of(shape, shape.workspace_of(*leaf))
        group = group_row(shape, *leaf, models)
        closed = group_row(shape, *leaf, (replace(models[0], rate_limits=(CLOSED,)), *models[1:]))
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key_of(0)}"}) as session:
            for row, body, status in (
                (key, None, 403),
                (key, key.body, 200),
                (group, closed.body, 429),
                (group, group.body, 200),
            ):
                start_s = time.monotonic()
                self.control.put(row.kind, row.id, body)
                await self.hints.publish(CHANNEL, str(self.control.revision))
                await self._answers(session, models[0].slug, status)
                self.change_ms.append((time.monotonic() - start_s) * 1000)

    async def _answers(self, session: aiohttp.ClientSession, slug: str, status: int) -> None:
        """Call until the answer has this status."""
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        call = {"model": slug, "messages": [{"role": "user", "content": "Fox?"}], "max_tokens": 64}
        last_answer = ""
        end_s = time.monotonic() + LATEST_CHANGE_S
        while time.monotonic() < end_s:
            async with session.post(url, json=call) as answer:
                if answer.status == status:
                    return
                last_answer = f"{answer.status} {await answer.text()}"
            await asyncio.sleep(0.005)
        raise BenchError(f"a change did not lead to {status} within {LATEST_CHANGE_S} s: {last_answer[:300]}")


async def build_replica(path: Path, shape: Shape) -> None:
    replica = PolicyReplica(path)
    wall_s, _ = await follow(replica, PagedFeed(rows(shape), ReplicaVersion("epoch", 1), reset=True))
    replica.close()
    print(f"{path.parent.name}: replica built in {wall_s:.1f} s", flush=True)


async def start_subject(stack: AsyncExitStack, folder: Path, shape: Shape, environ: dict[str, str]) -> Subject:
    """Build the replica, and start a proxy on it. Each has a Redis and a control of its own: they share names."""
    os.mkdir(folder)
    await build_replica(folder / "replica.db", shape)
    server = stack.enter_context(private_redis())
    control = FakeControl(epoch="epoch", revision=1, events=NoEvents())
    hints = redis.asyncio.Redis.from_url(server.url)
    stack.push_async_callback(hints.aclose)
    port = free_port()
    admin = free_port()
    argv = [sys.executable, "-m", "proxy", "--proxy-port", str(port), "--admin-port", str(admin), "--workers", "1"]
    environ = environ | {
        "TOLLGATE_REDIS_URL": server.url,
        "TOLLGATE_CONTROL_URL": await stack.enter_async_context(serve_control(control)),
        "TOLLGATE_REPLICA_PATH": str(folder / "replica.db"),
        "TOLLGATE_JOURNAL_DIR": str(folder / "journal"),
    }
    program = start("proxy", argv, PROXY_CORE, folder / "proxy.log", environ)
    stack.callback(program.stop)
    await asyncio.to_thread(wait_until, lambda: answers(port), f"the proxy ({folder}/proxy.log)")
    pairs = random.sample(range(shape.pairs), min(shape.pairs, 200_000))
    return Subject(shape, program, port, control, hints, pairs)


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
        environ = {
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
        for subject in subjects.values():
            subject.mib = subject.worker_mib()
        for _ in range(rounds):
            for subject in subjects.values():
                await subject.change()
        return subjects


def report(subjects: dict[str, Subject]) -> dict[str, list[float]]:
    """Print and return the ratios of each round, the workers' memory above the base's, and the times of changes."""
    base = subjects[BASE]
    facts = dict[str, list[float]]()
    for name, subject in subjects.items():
        again = [mine / theirs for mine, theirs in zip(subject.again_us, base.again_us, strict=True)]
        first = [mine / theirs for mine, theirs in zip(subject.first_us, base.again_us, strict=True)]
        change = subject.change_ms
        facts |= {f"again {name}": again, f"first {name}": first}
        facts |= {f"grown_mib {name}": [subject.mib - base.mib], f"change_ms {name}": change}
        print(
            f"{name}: {statistics.median(subject.again_us):.0f} µs, {statistics.median(again):.2f} times"
            f" ({min(again):.2f} to {max(again):.2f}); first call {statistics.median(subject.first_us):.0f} µs,"
            f" {statistics.median(first):.2f} times ({min(first):.2f} to {max(first):.2f})"
            f"; worker {subject.mib:.0f} MiB"
            f"; a change shows after {statistics.median(change):.0f} ms, at most {max(change):.0f}",
            flush=True,
        )
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="some of the shapes; the first is always measured")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--facts", type=Path, help="also write the figures to this file, as JSON")
    options = parser.parse_args()
    treat_sigterm_as_interrupt()
    names = [name for name in SHAPES if name == BASE or name in options.shapes.split(",")]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        facts = report(uvloop.run(measure(Path(folder), names, options.pairs, options.rounds)))
    if options.facts is not None:
        options.facts.write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
