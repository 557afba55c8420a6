"""Full disks, torn journals, absent databases, stepped clocks: no event is lost or doubled; the operator is told."""

import asyncio
import contextlib
import os
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import orjson
import pytest

from policy.billing import Tokens
from proxy.accounting.journal_records import Kind, frames
from tests.journeys.books import Event, faults_of_events
from tests.journeys.callers import Told
from tests.journeys.chaos import HOLDBACK_S, WORKERS, Stand, standing, verdict
from tests.journeys.product import kill
from tests.journeys.stepped_clock import COMPILER, SteppedClock
from tests.journeys.stepped_clock import MISSING as NO_COMPILER
from tests.postgres_server import MISSING as NO_POSTGRES
from tests.postgres_server import find_binaries, running_postgres
from tests.upstream.questions import Question

SEGMENT_BYTES = 8 * 1024 * 1024
LARGE = {"metadata": {"pad": "x" * 60_000}}
"""Metadata is journaled with each call."""

pytestmark = pytest.mark.timeout(240)


@contextlib.contextmanager
def locked_database(stand: Stand) -> Iterator[None]:
    """Another process holds SQLite's write lock, so that control cannot commit."""
    with contextlib.closing(sqlite3.connect(stand.product.data / "control.db", timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.rollback()


async def some_calls(stand: Stand, count: int, **more: object) -> list[Told]:
    """Make calls one after the other, each with another cost."""
    chance = stand.callers.chance
    return [
        await stand.callers.call(
            "even", Question(Tokens(input=chance.randint(1, 999), output=number + 1, cached_input=0), 2, 0), **more
        )
        for number in range(count)
    ]


async def assert_all_answered(stand: Stand, count: int) -> None:
    told = await some_calls(stand, count)
    assert all(call.tokens for call in told), told


def log_of(stand: Stand) -> str:
    return stand.product.log.read_text(errors="replace")


class SmallDisk:
    """A small file system for the journals."""

    def __init__(self, directory: Path) -> None:
        self.journals = directory / "journals"
        self.journals.mkdir()
        size = (2 * WORKERS + 1) * SEGMENT_BYTES
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tollgate", self.journals], check=True)

    def fill(self, _stand: Stand) -> None:
        """The journals do that."""

    def make_room(self, _stand: Stand) -> None:
        """The shipper does that."""

    def release(self) -> None:
        subprocess.run(["umount", "-l", self.journals], check=True)

    @staticmethod
    def possible() -> bool:
        """Whether we may mount: only root may, and not in most containers."""
        if os.geteuid() != 0 or shutil.which("mount") is None:
            return False
        probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tollgate", "/mnt"]
        return subprocess.run(probe, check=False, capture_output=True).returncode == 0


class ShortFiles:
    """A limit on the size of files that no further segment fits, for machines on which nothing can be mounted."""

    def __init__(self, directory: Path) -> None:
        self.journals = directory / "journals"

    def fill(self, stand: Stand) -> None:
        _limit_files(stand, SEGMENT_BYTES - 1)

    def make_room(self, stand: Stand) -> None:
        _limit_files(stand, resource.RLIM_INFINITY)

    def release(self) -> None:
        """Nothing is left of it."""


def _limit_files(stand: Stand, size: int) -> None:
    for pid in stand.product.processes("-m proxy"):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture(params=[ShortFiles, *([SmallDisk] if SmallDisk.possible() else [])])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk | ShortFiles]:
    disk = request.param(tmp_path)
    yield disk
    disk.release()


async def refused_by_all(stand: Stand) -> None:
    """Make large calls until no worker admits one, so many at once that each worker gets some."""
    refused = 0
    while refused < 20:
        told = await asyncio.gather(*(some_calls(stand, 1, **LARGE) for _ in range(16)))
        codes = [call.code for calls in told for call in calls]
        assert set(codes) <= {"", "METERING_UNAVAILABLE"}, told
        refused = refused + len(codes) if all(codes) else 0


async def test_full_disk_refuses_calls_before_dispatch_and_loses_no_event(
    tmp_path: Path, disk: SmallDisk | ShortFiles
) -> None:
    """Workers that meet the full disk refuse, and so do those that start on it, until there is room."""
    async with standing(tmp_path, 1, {"TOLLGATE_JOURNAL_DIR": str(disk.journals)}) as stand:
        await assert_all_answered(stand, 5)
        disk.fill(stand)
        with locked_database(stand):
            await refused_by_all(stand)
            await assert_refused_before_dispatch(stand)
            await assert_the_operator_is_told(stand)
            await restart_workers(stand)
            (refused,) = await stand.until(lambda: _refused(stand), "refused, and not left to hang")
            assert (refused.status, refused.code) == (503, "METERING_UNAVAILABLE")
        disk.make_room(stand)
        await stand.until(lambda: _answered(stand), "calls are taken again")
        assert await verdict(stand, ()) == []


async def assert_refused_before_dispatch(stand: Stand) -> None:
    asked = len(stand.upstream.received)
    told = await some_calls(stand, 4, **LARGE)
    assert {(call.status, call.code) for call in told} == {(503, "METERING_UNAVAILABLE")}
    assert len(stand.upstream.received) == asked, "a call that could not be recorded went upstream"


async def assert_the_operator_is_told(stand: Stand) -> None:
    assert "the journal cannot allocate a segment" in log_of(stand)
    await stand.until(lambda: _troubled(stand, WORKERS), "the metric tells of every worker")
    async with stand.callers.session.get(stand.product.admin + "/readyz") as answer:
        assert answer.status == 503
        assert "journal" in (await answer.json())["checks"]


async def restart_workers(stand: Stand) -> None:
    """Kill the workers, a second after their last refusal: no event shows that its reservation was returned."""
    await asyncio.sleep(1)
    for pid in stand.product.processes("proxy.worker"):
        kill(pid)


async def _answered(stand: Stand) -> list[Told]:
    told = await some_calls(stand, 4)
    return told if all(call.tokens for call in told) else []


async def _refused(stand: Stand) -> list[Told]:
    return [call for call in await some_calls(stand, 1, **LARGE) if call.status]


async def test_torn_journal_tail_loses_only_the_torn_record(tmp_path: Path) -> None:
    """After a power failure the last record of each journal is torn; all others count."""
    async with standing(tmp_path, 1) as stand:
        with locked_database(stand):
            await assert_all_answered(stand, 40)
            await asyncio.to_thread(stand.product.kill)
        torn = {request_id for path in stand.product.data.glob("journal/*/*.journal") for request_id in _tear(path)}
        assert torn
        await asyncio.to_thread(stand.product.start)
        assert "ends in a torn record" in await stand.until(lambda: _log(stand, "torn record"), "told")
        assert (await stand.metrics())["tollgate_journal_damaged_places"] == len(torn)
        await stand.until(stand.drained, "shipped")
        await asyncio.sleep(HOLDBACK_S + 1)
        items = await stand.items()
        whole = [call for call in stand.callers.told if call.request_id not in torn]
        assert faults_of_events(whole, [item for item in items if item["requestId"] not in torn]) == []
        assert sorted(Event.of(item).request_id for item in items if item["requestId"] in torn) == sorted(torn)


async def _pending(stand: Stand, events: int) -> bool:
    return (await stand.metrics())["tollgate_journal_pending_events"] >= events


async def _troubled(stand: Stand, workers: int) -> bool:
    return (await stand.metrics())["tollgate_journal_troubled_workers"] == workers


async def _log(stand: Stand, words: str) -> str:
    text = log_of(stand)
    return text if words in text else ""


def _tear(path: Path) -> list[str]:
    """Overwrite the end of the last record. The request id of the call that it closed, if there is one."""
    data = path.read_bytes()
    records = list(frames(data))
    if not records:
        return []
    kind, closed, end = records[-1]
    assert kind is Kind.CLOSE
    opened = [orjson.loads(payload.split(b"\n")[0] + b"}") for kind, payload, _ in records if kind is Kind.OPEN]
    requests = {event["idempotency_key"]: event["request_id"] for event in opened}
    with path.open("r+b") as file:
        file.seek(end - 10)
        file.write(b"\xff\0\xff\0\xff\0\xff\0\xff\0")
    return [requests[closed.split(b"\n")[0].decode()]]


@contextlib.asynccontextmanager
async def without_control(stand: Stand) -> AsyncIterator[None]:
    """Kill control again and again."""

    async def keep_down() -> None:
        while True:
            for pid in stand.product.processes("-m control --"):
                with contextlib.suppress(ProcessLookupError):
                    kill(pid)
            await asyncio.sleep(0.05)

    killer = asyncio.create_task(keep_down())
    try:
        await asyncio.sleep(0.2)  # it has been killed by then, and is killed whenever it is back
        yield
    finally:
        killer.cancel()


@pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)
async def test_events_survive_an_hour_without_control(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    async with standing(tmp_path, 1, clock.environment) as stand:
        await assert_all_answered(stand, 5)
        async with without_control(stand):
            for _ in range(60):
                clock.step(60)
                await assert_all_answered(stand, 5)
            await stand.until(lambda: _pending(stand, 300), "the metric tells")
            assert "control does not take events" in log_of(stand)
        assert await verdict(stand, ()) == []
        assert "control takes events again" in log_of(stand)


@pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)
async def test_clock_stepped_back_loses_and_duplicates_no_event(tmp_path: Path) -> None:
    back_s = 20
    clock = SteppedClock(tmp_path)
    async with standing(tmp_path, 1, clock.environment) as stand:
        await assert_all_answered(stand, 20)
        await stand.until(stand.items, "served up to now")
        clock.step(-back_s)
        await assert_all_answered(stand, 20)
        for pid in stand.product.processes("proxy.worker"):
            kill(pid)
        await stand.until(lambda: _answered(stand), "calls are taken again")
        await stand.items()
        assert "clock was set back" in log_of(stand)
        assert back_s - 10 < await _behind_s(stand) <= back_s
        clock.step(back_s)  # what is stamped by the latest time is served when that has come again
        assert await verdict(stand, ()) == []


async def _behind_s(stand: Stand) -> float:
    made = await stand.desk.call("POST", "/v1/api_keys", {"type": "WORKSPACE_EXPORT_METRICS"})
    headers = {"Authorization": f"Bearer {made['api_key']}"}
    async with stand.callers.session.get(stand.product.control + "/metrics", headers=headers) as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("tollgate_event_clock_behind_seconds"))


async def test_locked_database_loses_no_event(tmp_path: Path) -> None:
    async with standing(tmp_path, 1) as stand:
        with locked_database(stand):
            await assert_all_answered(stand, 20)
            await stand.until(lambda: _log(stand, "control does not take events"), "the operator is told")
            await assert_all_answered(stand, 20)
            await stand.until(lambda: _pending(stand, 40), "the metric tells")
        assert await verdict(stand, ()) == []


@pytest.mark.skipif(find_binaries() is None, reason=NO_POSTGRES)
async def test_unreachable_database_loses_no_event(tmp_path: Path) -> None:
    with running_postgres() as server:
        settings = {"TOLLGATE_DATABASE_URL": await server.create_database("down")}
        async with standing(tmp_path, 1, settings) as stand:
            await assert_all_answered(stand, 5)
            await asyncio.to_thread(server.stop)
            try:
                await assert_all_answered(stand, 20)
                await stand.until(lambda: _log(stand, "control does not take events"), "the operator is told")
                await stand.until(lambda: _pending(stand, 20), "the metric tells")
            finally:
                await asyncio.to_thread(server.start)
            assert await verdict(stand, ()) == []
