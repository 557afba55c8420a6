"""Measures how long other callers of control wait while one asks for the largest groups allowed (decision 0064).

`python -m bench.studies.control_turns [--rounds N] [--postgres] [--interval MS]`. Runs a real `tollgate control`, on
SQLite by default, with groups of 1000 models with four limits each on five CASCADING levels, bodies at the bounds, and
a proxy's largest batch of events and page of policy. Another process asks for `/healthz` without a rest. Prints for
each call how long it takes alone and beside the other caller, the other caller's longest wait, and how many of the
answers that it gets beside nothing it still gets. `--interval`: the interpreter's switch interval.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from timeit import timeit
from typing import Any

from bench.programs.control_plane import INTERNAL_TOKEN, ControlPlane, billing_event
from bench.programs.processes import OTHER_CORE, BenchError, treat_sigterm_as_interrupt
from control.api.internal_events import MAX_EVENTS
from control.api.protocol.bodies import MAX_DIGITS
from tests.control.api.large_groups import LEVELS, full_models
from tests.postgres_server import running_postgres
from tests.redis_server import private_redis

GROUPS = "/v1/gateway/groups"
ONCE = ("nothing", "create", "delete")
"""Calls that cannot be repeated."""
SECONDS = 0.5
"""The time for which the others are repeated."""
TIMEOUT_S = 60.0
CUSTOMIZED = """
import sys
if "control" in sys.orig_argv:
    import control.long_work
    control.long_work.SWITCH_INTERVAL_S = {interval_s}
"""
"""A `sitecustomize` that is only on the path of this study."""
Act = Callable[[], Any]


class Client:
    """Raw HTTP/1.1 on one connection, so that the client costs almost nothing."""

    def __init__(self, port: int, key: str = "") -> None:
        self._key = key
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._answers = self._socket.makefile("rb")

    def ask(self, method: str, path: str, body: bytes = b"", expected: bytes = b"200") -> bytes:
        """The body of the answer. Raises `BenchError` for any status other than `expected`."""
        head = f"{method} {path} HTTP/1.1\r\nHost: control\r\nAuthorization: Bearer {self._key}\r\n"
        if method in ("POST", "PATCH"):
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._socket.sendall(f"{head}\r\n".encode() + body)
        status = self._answers.readline().split(maxsplit=2)[1]
        length = 0
        for line in iter(self._answers.readline, b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        answer = self._answers.read(length)
        if status != expected:
            raise BenchError(f"{method} {path} was answered {status.decode()}: {answer[:300].decode()}")
        return answer

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


def ping(port: int, orders: Connection) -> None:
    """Runs as a process: between two orders, ask without a rest, then send back when each answer came."""
    os.sched_setaffinity(0, {OTHER_CORE})
    client = Client(port)
    while orders.recv():
        came_s = [time.perf_counter()]
        while not orders.poll():
            client.ask("GET", "/healthz")
            came_s.append(time.perf_counter())
        orders.recv()
        orders.send(came_s)
    client.close()


def group(entity: str, parent: str = "") -> bytes:
    hierarchy = {"parent_group_id": parent} if parent else {"limit_enforcement": "CASCADING"}
    return json.dumps(
        {"metadata": {"external_entity_id": entity}, "models": full_models(), "hierarchy": hierarchy}
    ).encode()


def tree(client: Client) -> list[str]:
    """Create five levels at the bound; returns their ids, from the root down."""
    ids = [""]
    for level in range(LEVELS):
        ids.append(json.loads(client.ask("POST", GROUPS, group(f"level {level}", ids[-1])))["id"])
    return ids[1:]


def at_once(port: int, key: str, count: int, path: str) -> None:
    """Send the same request from `count` callers at the same time."""
    clients = [Client(port, key) for _ in range(count)]
    threads = [threading.Thread(target=client.ask, args=("GET", path)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()


def bad_bodies() -> dict[str, bytes]:
    """Bodies that take as long to read, or to reject, as the bounds allow."""
    unknown = b"{%s}" % b",".join(b'"field%d":1' % n for n in range(99))
    parts = {
        "33 000 faults": b",".join([unknown] * 330),
        "24 000 objects": b",".join([b"{}"] * 24_000),
        "48 000 numbers": b",".join([b"1.5e3"] * 48_000),
        "48 000 strings": b",".join([b'"\\u0061bcdefg"'] * 48_000),
        "long numbers": b",".join([b"1" * MAX_DIGITS] * 1000),
    }
    return {name: b'{"metadata":{"external_entity_id":"x"},"models":[%s]}' % part for name, part in parts.items()}


def batch(value: bytes) -> bytes:
    """The largest batch that a proxy sends: each event with 25 times the JSON text `value` in its metadata."""
    metadata = {f"name {n}": "value" for n in range(25)}
    events = json.dumps({"events": [billing_event(metadata).to_wire() for _ in range(MAX_EVENTS)]})
    return events.encode().replace(b'"value"', value)


def acts(client: Client, port: int, key: str, ids: list[str]) -> dict[str, Act]:
    """The calls to measure, in order; the last one deletes the tree."""
    proxy = Client(port, INTERNAL_TOKEN)
    root = f"{GROUPS}/{ids[0]}"
    deepest = f"{GROUPS}/{ids[-1]}"
    more = group("more", ids[-2])
    raised = json.dumps({"models": full_models(threshold=10_000)}).encode()
    return {
        "nothing": lambda: time.sleep(0.5),
        "create": lambda: client.ask("POST", GROUPS, more),
        "get": lambda: client.ask("GET", deepest),
        "three gets at once": lambda: at_once(port, key, 3, deepest),
        "list": lambda: client.ask("GET", f"{GROUPS}?limit=1000"),
        "usage": lambda: client.ask("GET", f"{deepest}/usage?limit=1000"),
        "change the root": lambda: client.ask("PATCH", root, raised),
        **{
            f"refused: {name}": partial(client.ask, "POST", GROUPS, body, b"400") for name, body in bad_bodies().items()
        },
        "events from a proxy": partial(proxy.ask, "POST", "/internal/v1/events", batch(b'"%s"' % (b"x" * 25))),
        "and with long numbers": partial(proxy.ask, "POST", "/internal/v1/events", batch(b"1" + b"0" * 24)),
        "policy to a proxy": lambda: proxy.ask("GET", "/internal/v1/snapshot?limit=10000"),
        "delete": lambda: client.ask("DELETE", root),
    }


@dataclass(slots=True)
class Figures:
    """The times of one call, over all rounds, and the answers to others meanwhile."""

    own_ms: list[float] = field(default_factory=list)
    beside_ms: list[float] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)
    answers: int = 0
    seconds: float = 0.0

    def note(self, began_s: float, ended_s: float, came_s: list[float]) -> None:
        """Add one time between `began_s` and `ended_s`, in which others were answered at `came_s`."""
        waits = [(after, after - before) for before, after in pairwise(came_s) if after > began_s and before < ended_s]
        self.waits_ms.append(1000 * max(wait for _, wait in waits))
        self.answers += sum(began_s < after < ended_s for after, _ in waits)
        self.seconds += ended_s - began_s


def measure(port: int, key: str, rounds: int) -> dict[str, Figures]:
    """The figures of each call."""
    orders, theirs = multiprocessing.Pipe()
    pinger = multiprocessing.Process(target=ping, args=(port, theirs), daemon=True)
    pinger.start()
    figures: dict[str, Figures] = {}
    client = Client(port, key)
    for _ in range(rounds):
        for name, act in acts(client, port, key, tree(client)).items():
            of_call = figures.setdefault(name, Figures())
            if name not in ONCE:
                of_call.own_ms.append(1000 * timeit(act, number=3) / 3)
            measure_beside(of_call, act, orders, SECONDS if name not in ONCE else 0.0)
    client.close()
    orders.send(False)
    pinger.join()
    return figures


def measure_beside(of_call: Figures, act: Act, orders: Connection, seconds: float) -> None:
    """Note the figures of a call that is repeated for so long, at least once, beside the other caller."""
    orders.send(True)
    time.sleep(0.05)
    began_s = time.perf_counter()
    times = 0
    while not times or time.perf_counter() < began_s + seconds:
        act()
        times += 1
    ended_s = time.perf_counter()
    orders.send(True)
    of_call.note(began_s, ended_s, orders.recv())
    of_call.beside_ms.append(1000 * (ended_s - began_s) / times)


def show(figures: dict[str, Figures]) -> None:
    alone = figures["nothing"].answers / figures["nothing"].seconds
    print(f"{alone:.0f} answers a second beside nothing", flush=True)
    for name, of_call in figures.items():
        own = f"{median(of_call.own_ms):7.0f}" if of_call.own_ms else "      -"
        share = of_call.answers / of_call.seconds / alone
        print(
            f"{name:>24}  own {own} ms, beside the other {median(of_call.beside_ms):7.0f} ms;"
            f" wait {min(of_call.waits_ms):5.1f} to {max(of_call.waits_ms):5.1f} ms; kept {share:5.0%}",
            flush=True,
        )


def main() -> None:
    treat_sigterm_as_interrupt()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--interval", type=float, help="the interpreter's switch interval in ms")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = f"sqlite+aiosqlite:///{folder}/control.db"
        if options.postgres:
            database = asyncio.run(stack.enter_context(running_postgres()).create_database("bench"))
        redis = stack.enter_context(private_redis())
        if options.interval is not None:
            (folder / "sitecustomize.py").write_text(CUSTOMIZED.format(interval_s=options.interval / 1000))
            os.environ["PYTHONPATH"] = str(folder)
        control = stack.enter_context(ControlPlane(folder, database, redis.url))
        show(measure(control.port, control.make_workspace(), options.rounds))


if __name__ == "__main__":
    main()
