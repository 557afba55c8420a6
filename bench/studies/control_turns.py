"""Measures how long other callers of control wait while one asks for the largest groups allowed (decision 0018).

`python -m bench.studies.control_turns [--rounds N] [--postgres]`. Runs a real `tollgate control`, on SQLite by default,
with groups of 1000 models with four limits each on five CASCADING levels, bodies at the bounds, and a proxy's largest
batch of events and page of policy. Another process asks for `/healthz` a thousand times a second. Prints the longest
wait for it in ms, for each call and round.
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
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.programs.control_plane import INTERNAL_TOKEN, ControlPlane, billing_event
from bench.programs.processes import OTHER_CORE, BenchError, treat_sigterm_as_interrupt
from control.api.internal_events import MAX_EVENTS
from control.api.protocol.bodies import MAX_DIGITS
from tests.control.api.large_groups import LEVELS, full_models
from tests.postgres_server import running_postgres
from tests.redis_server import private_redis

GROUPS = "/v1/gateway/groups"
PING_EVERY_S = 0.001
TIMEOUT_S = 60.0
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
    """Runs as a process: between two orders, ask repeatedly, then send back the longest wait in seconds."""
    os.sched_setaffinity(0, {OTHER_CORE})
    client = Client(port)
    while orders.recv():
        longest_s = 0.0
        while not orders.poll():
            asked_s = time.perf_counter()
            client.ask("GET", "/healthz")
            longest_s = max(longest_s, time.perf_counter() - asked_s)
            time.sleep(PING_EVERY_S)
        orders.recv()
        orders.send(longest_s)
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


def batch(value: Any) -> bytes:
    """The largest batch that a proxy sends: a thousand events, with a megabyte of metadata."""
    metadata = {f"name {n}": value for n in range(25)}
    return json.dumps({"events": [billing_event(metadata).to_wire() for _ in range(MAX_EVENTS)]}).encode()


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
        "events from a proxy": partial(proxy.ask, "POST", "/internal/v1/events", batch("x" * 25)),
        "and with long numbers": partial(proxy.ask, "POST", "/internal/v1/events", batch(10**24)),
        "policy to a proxy": lambda: proxy.ask("GET", "/internal/v1/snapshot?limit=10000"),
        "delete": lambda: client.ask("DELETE", root),
    }


def measure(port: int, key: str, rounds: int) -> dict[str, list[float]]:
    """The longest wait for `/healthz` in ms during each call, round by round."""
    orders, theirs = multiprocessing.Pipe()
    pinger = multiprocessing.Process(target=ping, args=(port, theirs), daemon=True)
    pinger.start()
    waits: dict[str, list[float]] = {}
    client = Client(port, key)
    for _ in range(rounds):
        for name, act in acts(client, port, key, tree(client)).items():
            orders.send(True)
            time.sleep(0.05)
            act()
            orders.send(True)
            waits.setdefault(name, []).append(1000 * orders.recv())
    client.close()
    orders.send(False)
    pinger.join()
    return waits


def main() -> None:
    treat_sigterm_as_interrupt()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = f"sqlite+aiosqlite:///{folder}/control.db"
        if options.postgres:
            database = asyncio.run(stack.enter_context(running_postgres()).create_database("bench"))
        redis = stack.enter_context(private_redis())
        control = stack.enter_context(ControlPlane(folder, database, redis.url))
        for name, longest in measure(control.port, control.make_workspace(), options.rounds).items():
            print(f"{name:>24}  " + "  ".join(f"{ms:6.1f}" for ms in longest), flush=True)


if __name__ == "__main__":
    main()
