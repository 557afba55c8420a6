"""Full disks, torn journals, unreachable databases, stepped clocks: no event is lost or duplicated.

Logs and metrics report the trouble.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import orjson
import pytest

from policy.billing import Tokens
from proxy.accounting.journal_records import Kind, frames
from tests.journeys.billing_faults import Event, faults_of_events
from tests.journeys.callers import CallRecord
from tests.journeys.chaos import HOLDBACK_S, WORKERS, Rig, running_rig, verdict
from tests.journeys.product import METRICS_TOKEN, kill
from tests.postgres_server import MISSING as NO_POSTGRES
from tests.postgres_server import find_binaries, running_postgres
from tests.stepped_clock import COMPILER, SteppedClock
from tests.stepped_clock import MISSING as NO_COMPILER
from tests.upstream.questions import Question

SEGMENT_BYTES = 8 * 1024 * 1024
LARGE = {"metadata": {"pad": "x" * 60_000}}
"""Metadata is journaled with each call."""

pytestmark = pytest.mark.timeout(240)


@contextlib.contextmanager
def locked_database(rig: Rig) -> Iterator[None]:
    """Another process holds SQLite's write lock, so that control cannot commit."""
    with contextlib.closing(sqlite3.connect(rig.product.data / "control.db", timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.rollback()


async def make_calls(rig: Rig, count: int, **more: object) -> list[CallRecord]:
    """Make calls one after the other, each with a different cost."""
    rng = rig.callers.rng
    return [
        await rig.callers.call(
            "even", Question(Tokens(input=rng.randint(1, 999), output=number + 1, cached_input=0), 2, 0), **more
        )
        for number in range(count)
    ]


async def assert_all_answered(rig: Rig, count: int) -> None:
    calls = await make_calls(rig, count)
    assert all(call.tokens for call in calls), calls


def log_of(rig: Rig) -> str:
    return rig.product.log.read_text(errors="replace")


class SmallDisk:
    """A small file system for the journals."""

    def __init__(self, directory: Path) -> None:
        self.journals = directory / "journals"
        self.journals.mkdir()
        size = (2 * WORKERS + 1) * SEGMENT_BYTES
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tollgate", self.journals], check=True)

    def fill(self, _stand: Rig) -> None:
        """The journals fill it themselves."""

    def make_room(self, _stand: Rig) -> None:
        """The shipper deletes segments."""

    def release(self) -> None:
        subprocess.run(["umount", "-l", self.journals], check=True)

    @staticmethod
    def possible() -> bool:
        """Return whether the tests may mount: only root may, and not in most containers."""
        if os.geteuid() != 0 or shutil.which("mount") is None:
            return False
        probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tollgate", "/mnt"]
        return subprocess.run(probe, check=False, capture_output=True).returncode == 0


class FileSizeLimit:
    """A limit on file sizes below one segment, for machines on which nothing can be mounted."""

    def __init__(self, directory: Path) -> None:
        self.journals = directory / "journals"

    def fill(self, rig: Rig) -> None:
        _limit_files(rig, SEGMENT_BYTES - 1)

    def make_room(self, rig: Rig) -> None:
        _limit_files(rig, resource.RLIM_INFINITY)

    def release(self) -> None:
        """The limit ends with the processes."""


def _limit_files(rig: Rig, size: int) -> None:
    for pid in rig.product.processes("-m proxy"):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


DISKS = [SmallDisk, pytest.param(FileSizeLimit, marks=pytest.mark.soak)] if SmallDisk.possible() else [FileSizeLimit]


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk | FileSizeLimit]:
    disk = request.param(tmp_path)
    yield disk
    disk.release()


async def fill_until_all_workers_refuse(rig: Rig) -> None:
    """Make large calls until no worker admits one, so many at once that each worker gets some."""
    refusal_count = 0
    while refusal_count < 20:
        results = await asyncio.gather(*(make_calls(rig, 1, **LARGE) for _ in range(16)))
        codes = [call.code for calls in results for call in calls]
        assert set(codes) <= {"", "METERING_UNAVAILABLE"}, results
        refusal_count = refusal_count + len(codes) if all(codes) else 0


async def test_full_disk_refuses_calls_before_dispatch_and_loses_no_event(
    tmp_path: Path, disk: SmallDisk | FileSizeLimit
) -> None:
    """Running workers and workers that start on the full disk refuse calls until there is room."""
    async with running_rig(tmp_path, 1, {"TOLLGATE_JOURNAL_DIR": str(disk.journals)}) as rig:
        await assert_all_answered(rig, 5)
        disk.fill(rig)
        with locked_database(rig):
            await fill_until_all_workers_refuse(rig)
            await assert_refused_before_dispatch(rig)
            await assert_log_metric_and_readiness_report_it(rig)
            await restart_workers(rig)
            (refusal,) = await rig.until(lambda: _refused(rig), "a refusal, not a hang")
            assert (refusal.status, refusal.code) == (503, "METERING_UNAVAILABLE")
        disk.make_room(rig)
        await rig.until(lambda: _answered(rig), "calls are admitted again")
        assert await verdict(rig, ()) == []


async def assert_refused_before_dispatch(rig: Rig) -> None:
    received_before = len(rig.upstream.received)
    calls = await make_calls(rig, 4, **LARGE)
    assert {(call.status, call.code) for call in calls} == {(503, "METERING_UNAVAILABLE")}
    assert len(rig.upstream.received) == received_before, "a call that could not be recorded went upstream"


async def assert_log_metric_and_readiness_report_it(rig: Rig) -> None:
    assert "the journal cannot allocate a segment" in log_of(rig)
    await rig.until(lambda: _workers_with_disk_trouble_are(rig, WORKERS), "the metric counts every worker")
    async with rig.callers.session.get(rig.product.admin + "/readyz") as answer:
        assert answer.status == 503
        assert "journal" in (await answer.json())["checks"]


async def restart_workers(rig: Rig) -> None:
    """Kill the workers, a second after their last refusal, because no event shows that its reservation was returned."""
    await asyncio.sleep(1)
    for pid in rig.product.processes("proxy.worker"):
        kill(pid)


async def _answered(rig: Rig) -> list[CallRecord]:
    calls = await make_calls(rig, 4)
    return calls if all(call.tokens for call in calls) else []


async def _refused(rig: Rig) -> list[CallRecord]:
    return [call for call in await make_calls(rig, 1, **LARGE) if call.status]


@pytest.mark.soak
async def test_torn_journal_tail_loses_only_the_torn_record(tmp_path: Path) -> None:
    """A power failure tears the last record of each journal. All others count."""
    async with running_rig(tmp_path, 1) as rig:
        with locked_database(rig):
            await assert_all_answered(rig, 40)
            await asyncio.to_thread(rig.product.kill)
        torn = {request_id for path in rig.product.data.glob("journal/*/*.journal") for request_id in _tear(path)}
        assert torn
        await asyncio.to_thread(rig.product.start)
        assert "ends in a torn record" in await rig.until(
            lambda: _log_with(rig, "torn record"), "the torn record is logged"
        )
        await rig.until(lambda: _damaged_places_are(rig, len(torn)), "every torn journal has been read")
        await rig.until(rig.drained, "shipped")
        await asyncio.sleep(HOLDBACK_S + 1)
        items = await rig.books.items()
        whole = [call for call in rig.callers.records if call.request_id not in torn]
        assert faults_of_events(whole, [item for item in items if item["requestId"] not in torn]) == []
        assert sorted(Event.of(item).request_id for item in items if item["requestId"] in torn) == sorted(torn)


async def _pending(rig: Rig, events: int) -> bool:
    return (await rig.metrics())["tollgate_journal_pending_events"] >= events


async def _damaged_places_are(rig: Rig, places: int) -> bool:
    return (await rig.metrics())["tollgate_journal_damaged_places"] == places


async def _workers_with_disk_trouble_are(rig: Rig, workers: int) -> bool:
    return (await rig.metrics())["tollgate_journal_troubled_workers"] == workers


async def _log_with(rig: Rig, words: str) -> str:
    text = log_of(rig)
    return text if words in text else ""


def _tear(path: Path) -> list[str]:
    """Overwrite the end of the last record. Return the request id of the call that it closed, if any."""
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
async def without_control(rig: Rig) -> AsyncIterator[None]:
    """Kill control again and again."""

    async def keep_down() -> None:
        while True:
            for pid in rig.product.processes("-m control --"):
                with contextlib.suppress(ProcessLookupError):
                    kill(pid)
            await asyncio.sleep(0.05)

    killer = asyncio.create_task(keep_down())
    try:
        await asyncio.sleep(0.2)  # control has been killed by now, and is killed again after each restart
        yield
    finally:
        killer.cancel()


@pytest.mark.soak
@pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)
async def test_events_survive_an_hour_without_control(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path)
    clock.keep_from_midnight(2 * 3600)  # the verdict compares the events with the day's usage
    async with running_rig(tmp_path, 1, clock.environment) as rig:
        await assert_all_answered(rig, 5)
        async with without_control(rig):
            for _ in range(60):
                clock.step(60)
                await assert_all_answered(rig, 5)
            await rig.until(lambda: _pending(rig, 300), "the metric counts the pending events")
            assert "control does not take events" in log_of(rig)
        assert await verdict(rig, ()) == []
        assert "control takes events again" in log_of(rig)


@pytest.mark.soak
@pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)
async def test_clock_stepped_back_loses_and_duplicates_no_event(tmp_path: Path) -> None:
    back_s = 20
    clock = SteppedClock(tmp_path)
    async with running_rig(tmp_path, 1, clock.environment) as rig:
        await assert_all_answered(rig, 20)
        began_s = time.monotonic()
        await rig.until(rig.books.items, "the events so far are listed")
        clock.step(-back_s)
        await assert_all_answered(rig, 20)
        for pid in rig.product.processes("proxy.worker"):
            kill(pid)
        await rig.until(lambda: _answered(rig), "calls are admitted again")
        await rig.books.items()
        assert "clock was set back" in log_of(rig)
        behind_s = await _behind_s(rig)
        assert back_s - (time.monotonic() - began_s) < behind_s <= back_s, "the clock has caught up by the time passed"
        clock.step(back_s)  # events stamped with the later time are served once that time has come again
        assert await verdict(rig, ()) == []


async def _behind_s(rig: Rig) -> float:
    headers = {"Authorization": f"Bearer {METRICS_TOKEN}"}
    async with rig.callers.session.get(rig.product.control + "/metrics", headers=headers) as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("tollgate_event_clock_behind_seconds"))


@pytest.mark.soak
async def test_locked_database_loses_no_event(tmp_path: Path) -> None:
    async with running_rig(tmp_path, 1) as rig:
        with locked_database(rig):
            await assert_all_answered(rig, 20)
            await rig.until(lambda: _log_with(rig, "control does not take events"), "the outage is logged")
            await assert_all_answered(rig, 20)
            await rig.until(lambda: _pending(rig, 40), "the metric counts the pending events")
        assert await verdict(rig, ()) == []


@pytest.mark.skipif(find_binaries() is None, reason=NO_POSTGRES)
async def test_unreachable_database_loses_no_event(tmp_path: Path) -> None:
    with running_postgres() as server:
        settings = {"TOLLGATE_DATABASE_URL": await server.create_database("down")}
        async with running_rig(tmp_path, 1, settings) as rig:
            await assert_all_answered(rig, 5)
            await asyncio.to_thread(server.stop)
            try:
                await assert_all_answered(rig, 20)
                await rig.until(lambda: _log_with(rig, "control does not take events"), "the outage is logged")
                await rig.until(lambda: _pending(rig, 20), "the metric counts the pending events")
            finally:
                await asyncio.to_thread(server.start)
            assert await verdict(rig, ()) == []
