"""The cost of policy at scale: 10 000 endpoints, 100 000 groups, 1 000 000 keys.

`python -m bench.studies.policy_scale [--keys N] [--folder DIR] [--facts FILE]`, a part of `make bench`. Prints:
the time to build the replica, the memory of a reader after many keys, cold look-ups, the cost of a refresh with 100
changes, and the time from a real proxy's start to its first answer.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import orjson

from bench.programs.processes import free_port, wait_until
from policy.credentials import KeyKind
from policy.endpoints import Target
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.snapshot import EndpointRow, KeyRow, Row, SnapshotPage, WorkspaceRow, group_to_wire
from proxy.edges.policy.directory import SnapshotDirectory
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.edges.policy.supervisor.replica_listing import FixedGeneration, NoConfirmer
from proxy.records.supervisor.policy_replica import ReplicaVersion
from proxy.supervisor.refresher import Refresher
from tests.fakes.control_plane import TOKEN, FakeControl, serve_control
from tests.redis_server import private_redis

PAGE = 5000
ENDPOINTS = 10_000
GROUPS = 100_000
LOOK_UPS = 200_000


def key_of(number: int) -> str:
    return f"tg_{number:012d}.{'s' * 27}"


def digest(number: int) -> str:
    return hashlib.sha256(key_of(number).encode()).hexdigest()


def slug_of(number: int) -> str:
    return f"org/model-{number % ENDPOINTS}"


def group_row(number: int, revision: int = 1) -> Row:
    """Trees of three levels: 1 root, 9 groups below it, 90 leaves; each names four slugs with four limits."""
    place = number % 100
    parent = None if place == 0 else number - place + (0 if place < 10 else place % 9 + 1)
    limits = (Limit(LimitType.REQUEST, Unit.MINUTE, 1000), Limit(LimitType.TOKEN, Unit.MINUTE, 100_000))
    day = (Limit(LimitType.REQUEST, Unit.DAY, 100_000), Limit(LimitType.TOKEN, Unit.DAY, 10_000_000))
    models = tuple(SlugLimits(slug_of(number // 100 * 7 + k), limits, day) for k in range(4))
    above = None if parent is None else f"grp_{parent:08d}"
    group = Group(f"grp_{number:08d}", "ws_1", above, f"customer-{number}", Enforcement.CASCADING, models)
    return Row("group", group.id, revision, group_to_wire(group))


def key_row(number: int, revision: int = 1) -> Row:
    row = KeyRow(digest(number), f"tg_{number:012d}", KeyKind.FEDERATED, "ws_1", f"grp_{number % GROUPS:08d}")
    return Row("key", row.digest, revision, row.to_wire())


def rows(keys: int) -> Iterator[Row]:
    yield Row("workspace", "ws_1", 1, WorkspaceRow("ws_1", "active", "pro", True).to_wire())
    for number in range(ENDPOINTS):
        target = Target("VENDOR_B", secret_id="sec_1", target_model="gpt")
        endpoint = EndpointRow(slug_of(number), f"ep_{number}", "ws_1", target)
        yield Row("endpoint", endpoint.slug, 1, endpoint.to_wire())
    yield from (group_row(number) for number in range(GROUPS))
    yield from (key_row(number) for number in range(keys))


class PagedFeed:
    """Control's answers, generated on demand and passed through JSON as on the wire."""

    def __init__(self, source: Iterator[Row], version: ReplicaVersion, *, reset: bool) -> None:
        self._source = source
        self._version = version
        self._reset = reset

    async def page(self, since: ReplicaVersion, after: str | None) -> SnapshotPage:
        page = tuple(islice(self._source, PAGE))
        following = "more" if len(page) == PAGE else None
        reset = self._reset and after is None
        delta = SnapshotPage(self._version.epoch, self._version.revision, reset, page, following)
        return SnapshotPage.from_wire(orjson.loads(orjson.dumps(delta.to_wire())))


async def follow(replica: PolicyReplica, feed: PagedFeed) -> tuple[float, float]:
    """One refresh: (wall, CPU) seconds."""
    wall = time.perf_counter()
    cpu = time.process_time()
    assert await Refresher(replica, feed, 60)._refresh(time.monotonic())
    return time.perf_counter() - wall, time.process_time() - cpu


def refresh_cost_ms(path: Path, revision: int) -> float:
    """The median CPU of twenty refreshes with 100 changes each: 60 keys, 40 groups."""
    replica = PolicyReplica(path)
    spent: list[float] = []
    for turn in range(20):
        numbers = random.Random(turn).sample(range(GROUPS), 100)
        changed = [key_row(n) for n in numbers[:60]] + [group_row(n) for n in numbers[60:]]
        feed = PagedFeed(iter(changed), ReplicaVersion("epoch", revision + turn), reset=False)
        spent.append(asyncio.run(follow(replica, feed))[1] * 1000)
    replica.close()
    return statistics.median(spent)


def read_much(path: Path, keys: int) -> None:
    """Look up many keys with their plans and endpoints; print memory and cold look-up times as JSON."""
    directory = SnapshotDirectory(path, (), FixedGeneration(), NoConfirmer())
    if not keys:
        print(json.dumps({"rss_mib": rss_mib()}))
        return
    chance = random.Random(1)
    directory.key_holder(digest(0))
    spent: list[float] = []
    for _ in range(LOOK_UPS):
        number = chance.randrange(keys)
        key_digest = digest(number)
        slug = slug_of(number % GROUPS // 100 * 7)
        start_s = time.perf_counter()
        holder = directory.key_holder(key_digest)
        spent.append(time.perf_counter() - start_s)
        assert holder is not None
        assert holder.group is not None
        assert directory.slug_route(holder.group, holder.key, slug) is not None
    quantiles = statistics.quantiles(spent, n=1000)
    result = {"rss_mib": rss_mib(), "p50_us": quantiles[499] * 1e6, "p99_us": quantiles[989] * 1e6}
    result |= {"hit_us": timed_us(lambda: directory.key_holder(key_digest)), "plan_us": plan_us(path, keys)}
    print(json.dumps(result))


def plan_us(path: Path, keys: int) -> float:
    """The median time of a cold look-up: key, group, ancestors, endpoint and plan, in an empty directory."""
    spent: list[float] = []
    for turn in range(200):
        number = random.Random(turn).randrange(keys)
        directory = SnapshotDirectory(path, (), FixedGeneration(), NoConfirmer())
        directory.workspace("nobody")  # opens the file, loads nothing
        key_digest = digest(number)
        slug = slug_of(number % GROUPS // 100 * 7)
        start_s = time.perf_counter()
        caller = directory.key_holder(key_digest)
        assert caller is not None
        assert caller.group is not None
        assert directory.slug_route(caller.group, caller.key, slug) is not None
        spent.append((time.perf_counter() - start_s) * 1e6)
        directory.close()
    return statistics.median(spent)


def timed_us(act: object) -> float:
    assert callable(act)
    start_s = time.perf_counter()
    for _ in range(10_000):
        act()
    return (time.perf_counter() - start_s) * 100


def rss_mib(pid: int | str = "self") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


async def first_answer(path: Path, version: ReplicaVersion) -> tuple[float, float]:
    """A real proxy on the warm replica: seconds from its start to a key being recognised, and a worker's MiB."""
    control = FakeControl(epoch=version.epoch, revision=version.revision)
    with private_redis() as redis:
        async with serve_control(control) as control_url:
            environ = os.environ | {
                "TOLLGATE_REDIS_URL": redis.url,
                "TOLLGATE_CONTROL_URL": control_url,
                "TOLLGATE_INTERNAL_TOKEN": TOKEN,
                "TOLLGATE_SECRET_KEY": b64encode(b"k" * 32).decode(),
                "TOLLGATE_REPLICA_PATH": str(path),
                "TOLLGATE_JOURNAL_DIR": str(path.parent / "journal"),
            }
            return await asyncio.to_thread(start_and_ask, environ)


def start_and_ask(environ: dict[str, str]) -> tuple[float, float]:
    port = free_port()
    flags = ["--proxy-port", str(port), "--admin-port", str(free_port())]
    start_s = time.perf_counter()
    proxy = subprocess.Popen([sys.executable, "-m", "proxy", *flags], env=environ, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: recognised(f"http://127.0.0.1:{port}/v1/models"), "the proxy", every_s=0.01)
        spent = time.perf_counter() - start_s
        worker = Path(f"/proc/{proxy.pid}/task/{proxy.pid}/children").read_text().split()[0]
        return spent, rss_mib(worker)
    finally:
        proxy.send_signal(signal.SIGTERM)
        proxy.wait()


def recognised(url: str) -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key_of(7)}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def child(path: Path, keys: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.studies.policy_scale", "--read", str(path), "--keys", str(keys)]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return figures


def measure(folder: Path, keys: int) -> dict[str, float]:
    version = ReplicaVersion("epoch", 1)
    big = folder / "replica.db"
    empty = folder / "empty.db"
    replica = PolicyReplica(big)
    wall, cpu = asyncio.run(follow(replica, PagedFeed(rows(keys), version, reset=True)))
    replica.close()
    size_mib = big.stat().st_size / 2**20
    total = f"{ENDPOINTS:,} endpoints, {GROUPS:,} groups, {keys:,} keys"
    tell(f"replica of {total}: built in {wall:.1f} s ({cpu:.1f} s CPU), {size_mib:.0f} MiB on disk")
    replica = PolicyReplica(empty)
    asyncio.run(follow(replica, PagedFeed(iter(()), version, reset=True)))
    replica.close()
    return measure_reader(big, empty, keys) | measure_refresh(big, empty) | measure_start(folder, big)


def measure_reader(big: Path, empty: Path, keys: int) -> dict[str, float]:
    nothing = child(empty, 0)
    much = child(big, keys)
    grown = much["rss_mib"] - nothing["rss_mib"]
    tell(f"reader: {nothing['rss_mib']:.1f} MiB empty, +{grown:.1f} MiB after {LOOK_UPS:,} look-ups (aim ≤ 64)")
    cold = f"cold p50 {much['p50_us']:.0f} µs, p99 {much['p99_us']:.0f} µs (aim ≤ 200)"
    tell(f"key look-up: {much['hit_us']:.2f} µs kept; {cold}")
    tell(f"key, endpoint, group, two ancestors and the plan, all cold: median {much['plan_us']:.0f} µs")
    return {"reader_grown_mib": grown, "cold_p99_us": much["p99_us"]}


def measure_refresh(big: Path, empty: Path) -> dict[str, float]:
    small_ms = refresh_cost_ms(empty, 100)
    large_ms = refresh_cost_ms(big, 100)
    ratio = large_ms / small_ms
    tell(f"refresh with 100 changes: {small_ms:.1f} ms CPU empty, {large_ms:.1f} ms full: {ratio:.2f} times (aim ≤ 2)")
    return {"refresh_ratio": ratio}


def measure_start(folder: Path, big: Path) -> dict[str, float]:
    fresh_s, fresh_mib = asyncio.run(first_answer(empty_with_one_key(folder), ReplicaVersion("epoch", 1)))
    start_s, start_mib = asyncio.run(first_answer(big, ReplicaVersion("epoch", 119)))
    tell(f"start to first answer, warm replica: {start_s:.2f} s (aim ≤ 3; {fresh_s:.2f} s with one key)")
    tell(f"worker after its first answer: {start_mib:.1f} MiB ({fresh_mib:.1f} MiB with one key)")
    return {"start_s": start_s, "worker_grown_mib": start_mib - fresh_mib}


def tell(line: str) -> None:
    """Print without delay: the whole run takes more than a minute."""
    print(line, flush=True)


def empty_with_one_key(folder: Path) -> Path:
    path = folder / "one.db"
    replica = PolicyReplica(path)
    few = [next(iter(rows(0))), group_row(7), key_row(7)]
    asyncio.run(follow(replica, PagedFeed(iter(few), ReplicaVersion("epoch", 1), reset=True)))
    replica.close()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--facts", type=Path, help="also write the figures to this file, as JSON")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        read_much(options.read, options.keys)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        facts = measure(Path(folder), options.keys)
    if options.facts is not None:
        options.facts.write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
