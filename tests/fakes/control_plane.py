"""A small control plane in process: rows with revisions, served as SnapshotPage pages at /internal/v1/snapshot.

It keeps the guarantees of the real one (revision order, tombstones, "start over" for another epoch) and fails on
request. `FakeControl` is the pages alone, a `Feed` for the refresher; `serve_control` puts it on a real port.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from policy.snapshot import Row, SnapshotPage
from proxy.errors import ControlUnreachableError
from proxy.records.supervisor.policy_replica import ReplicaVersion

TOKEN = "internal-token-of-the-tests"


@dataclass
class FakeControl:
    """`page_rows`: how many rows one page holds. `requests`: the (epoch, since, after) of each request."""

    epoch: str = "epoch-1"
    nonce: str = ""
    """One for all revisions: another one than the asker's is another history, as after a restore."""
    revision: int = 0
    page_rows: int = 1000
    down: bool = False
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    requests: list[tuple[str, int, str | None]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    """The events that the ingest received, each idempotency key once."""
    reports: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The reports on deployments: `loads`, `wake` or `logs`, and the body."""
    traffic: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)
    """Rows of traffic, by sender and number of their batch."""
    machines: dict[str, list[str]] = field(default_factory=dict)
    """The incarnations that each machine told of last; a machine that told of none is gone."""
    waits: dict[str, str] = field(default_factory=dict)
    """The state of each tree of which reservations may be missing, by hash key."""
    rebuilt: dict[str, dict[str, str]] = field(default_factory=dict)
    """The states that each machine has confirmed, by hash key."""
    are_machines_down: bool = False
    """True if reports of workers are answered 503."""
    are_events_down: bool = False
    """True if the ingest answers 503."""
    refused_group: str | None = None
    """Events of this group are malformed, says the ingest."""
    gate: asyncio.Event | None = None
    """An event that requests wait for. None: they do not wait."""
    later_pages: asyncio.Event | None = None
    """The same for requests of pages behind the first."""

    def put(self, kind: str, id: str, body: dict[str, Any] | None) -> None:
        self.revision += 1
        self.rows[(kind, id)] = Row(kind, id, self.revision, body)

    def start_over(self, epoch: str) -> None:
        self.epoch = epoch
        self.revision = 0
        self.rows = {}

    async def page(self, since: ReplicaVersion, after: str | None) -> SnapshotPage:
        self.requests.append((since.epoch, since.revision, after))
        await self.admit(after)
        if self.down:
            raise ControlUnreachableError("the fake is down")
        epoch = since.epoch if since.nonce == self.nonce else "of another history"
        return self.answer(epoch, since.revision, after, self.page_rows)

    async def admit(self, after: str | None) -> None:
        """Wait for the gate of this request."""
        gate = self.gate if after is None or self.gate is not None else self.later_pages
        if gate is not None:
            await gate.wait()

    def answer(self, epoch: str, since: int, after: str | None, limit: int) -> SnapshotPage:
        reset = epoch != self.epoch
        floor = 0 if reset else since
        changed = [row for row in self.rows.values() if row.revision > floor and not (reset and row.body is None)]
        changed.sort(key=lambda row: row.revision)
        start = int(after or 0)
        page = tuple(changed[start : start + limit])
        following = str(start + limit) if start + limit < len(changed) else None
        return SnapshotPage(self.epoch, self.revision, reset and after is None, page, following, self.nonce)


@asynccontextmanager
async def serve_control(control: FakeControl, port: int = 0) -> AsyncIterator[str]:
    """The fake on a real port, with the token check of the real one. Yields its base URL."""

    async def snapshot(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        query = request.query
        control.requests.append((query["epoch"], int(query["since"]), query.get("after")))
        await control.admit(query.get("after"))
        if control.down:
            return web.json_response({"error": "down"}, status=503)
        limit = min(int(query["limit"]), control.page_rows)
        epoch = query["epoch"] if query["nonce"] == control.nonce else "of another history"
        delta = control.answer(epoch, int(query["since"]), query.get("after"), limit)
        return web.json_response(delta.to_wire())

    async def events(request: web.Request) -> web.Response:
        if control.down or control.are_events_down:
            return web.json_response({"error": "down"}, status=503)
        events = (await request.json())["events"]
        if any(event["group_id"] == control.refused_group for event in events):
            return web.json_response({"error": "a malformed event"}, status=400)
        control.events += [event for event in events if event not in control.events]
        return web.json_response({"accepted": len(events)})

    async def report(request: web.Request) -> web.Response:
        if control.down:
            return web.json_response({"error": "down"}, status=503)
        control.reports.append((request.match_info["what"], await request.json()))
        return web.json_response({})

    async def traffic(request: web.Request) -> web.Response:
        if control.down:
            return web.json_response({"error": "down"}, status=503)
        body = await request.json()
        control.traffic.setdefault((body["sender"], body["number"]), body["rows"])
        return web.json_response({})

    async def machines(request: web.Request) -> web.Response:
        if control.down or control.are_machines_down:
            return web.json_response({"error": "down"}, status=503)
        body = await request.json()
        name = body["machine"]
        control.machines[name] = body["incarnations"]
        if not body["incarnations"]:
            del control.machines[name]
        rebuilt = control.rebuilt.setdefault(name, {})
        rebuilt |= body["rebuilt"]
        states = {key: state for key, state in control.waits.items() if rebuilt.get(key) != state}
        return web.json_response({"waiting": states})

    app = web.Application()
    app.add_routes([web.post("/internal/v1/machines", machines)])
    app.add_routes([web.get("/internal/v1/snapshot", snapshot), web.post("/internal/v1/events", events)])
    app.add_routes([web.post("/internal/v1/deployments/{what}", report), web.post("/internal/v1/traffic", traffic)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
