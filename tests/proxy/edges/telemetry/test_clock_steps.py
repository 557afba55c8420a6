"""Steps of Redis' clock as several processes of a machine notice them."""

from prometheus_client import CollectorRegistry

from proxy.edges.telemetry.supervisor.clock_steps import TOLD_S, RedisClockSteps
from proxy.records.supervisor.findings import OK

HOUR_MS = 3_600_000


class Book:
    """`steps` with the test's clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.steps = RedisClockSteps(lambda: self.now_s)

    @property
    def counted(self) -> int:
        registry = CollectorRegistry()
        registry.register(self.steps)
        return int(registry.get_sample_value("tollgate_redis_clock_jumps_total") or 0)


async def test_no_step_is_no_finding() -> None:
    book = Book()
    assert await book.steps.finding() == OK
    assert book.counted == 0


async def test_a_step_that_several_processes_notice_counts_once() -> None:
    book = Book()
    book.steps.add(0, [("Redis", HOUR_MS), ("Redis", -HOUR_MS)])
    book.steps.add(1, [("Redis", HOUR_MS + 40), ("Redis", 12 - HOUR_MS)])
    book.steps.noticed(None, "Redis", -HOUR_MS)
    assert book.counted == 2
    book.steps.add(1, [("Redis", HOUR_MS)])
    book.steps.add(0, [("Redis", HOUR_MS), ("Redis at 10.0.0.2:6379", HOUR_MS)])
    assert book.counted == 4


async def test_the_latest_step_is_named_for_an_hour() -> None:
    book = Book()
    book.steps.add(0, [("Redis", HOUR_MS)])
    forward = await book.steps.finding()
    assert "Redis: its clock stepped forward by 3600.0 s" in forward.degraded
    book.now_s += 120
    assert (await book.steps.finding()).note == "2 min ago"
    assert (await book.steps.finding()).degraded == forward.degraded, "it is logged once"
    book.steps.add(0, [("Redis", -HOUR_MS)])
    back = await book.steps.finding()
    assert "stepped back by 3600.0 s" in back.degraded
    assert not back.fault
    book.now_s += TOLD_S - 1
    assert (await book.steps.finding()).degraded == back.degraded
    book.now_s += 1
    assert await book.steps.finding() == OK
