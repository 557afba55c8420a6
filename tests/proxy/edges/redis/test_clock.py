"""Redis' clock as it is estimated from replies: its steps are told, and nothing else is."""

import pytest

from proxy.edges.redis.nodes.clock import ClockSteps, RedisClock

START_MS = 1_700_000_000_000
REPLY_S = 0.05


class Observer:
    """A process that gets replies of servers. `steps`: what it was told of."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self._steps = ClockSteps(REPLY_S, lambda server, by_ms: self.steps.append((server, by_ms)))

    def reply(self, clock: RedisClock, at_s: float, redis_ms: int, server: str = "Redis") -> None:
        change = clock.learn(redis_ms, at_s)
        if change is not None:
            self._steps.check(server, clock, change)


@pytest.mark.parametrize("by_ms", [-3_600_000, -2_000, 2_000, 3_600_000])
def test_a_step_is_told_once(by_ms: int) -> None:
    observer = Observer()
    clock = RedisClock()
    observer.reply(clock, 10, START_MS)
    observer.reply(clock, 11, START_MS + 1_000)
    observer.reply(clock, 12, START_MS + 2_000 + by_ms)
    observer.reply(clock, 13, START_MS + 3_000 + by_ms)
    assert observer.steps == [("Redis", by_ms)]


def test_a_second_on_a_wrong_clock_is_two_steps() -> None:
    observer = Observer()
    clock = RedisClock()
    for at_s, ahead_ms in ((1, 0), (2, 3_600_000), (3, 0)):
        observer.reply(clock, at_s, START_MS + 1000 * at_s + ahead_ms)
    assert observer.steps == [("Redis", 3_600_000), ("Redis", -3_600_000)]


def test_slow_replies_and_drift_are_no_steps() -> None:
    """A clock that is slewed by a twelfth, at every reply later or earlier than the last, over any pause."""
    observer = Observer()
    clock = RedisClock()
    at_s = 0.0
    redis_ms = float(START_MS)
    for number, pause_s in enumerate((0.01, 1, 10, 100, 10_000, 100_000, 0.01)):
        at_s += pause_s
        redis_ms += pause_s * 1000 * (13 / 12 if number % 2 else 11 / 12)
        observer.reply(clock, at_s, round(redis_ms + 1000 * REPLY_S * (number % 2)))
    assert observer.steps == []


def test_a_fail_over_to_a_server_that_is_behind_is_a_step() -> None:
    """A client with sentinels connects to another server. In a cluster each server has a clock of its own."""
    observer = Observer()
    clock = RedisClock()
    observer.reply(clock, 1, START_MS)
    clock.forget()
    observer.reply(clock, 2, START_MS + 1_000 - 3_600_000)
    observer.reply(RedisClock(), 3, START_MS + 2_000 - 3_600_000, "Redis at 10.0.0.2:6379")
    assert observer.steps == [("Redis", -3_600_000)]
    observer.reply(RedisClock(), 4, START_MS + 3_000, "Redis at 10.0.0.3:6379")
    assert observer.steps[1:] == [("Redis at 10.0.0.3:6379", 3_600_000)]


def test_a_new_connection_to_a_known_server_is_compared_with_its_own_clock() -> None:
    observer = Observer()
    observer.reply(RedisClock(), 1, START_MS, "a")
    observer.reply(RedisClock(), 2, START_MS + 1_000 + 1_040, "b")
    observer.reply(RedisClock(), 3, START_MS + 2_000 + 1_040 + 100, "b")
    observer.reply(RedisClock(), 4, START_MS + 3_000 - 300, "a")
    assert observer.steps == []


def test_a_step_makes_takes_late_until_the_next_reply_only() -> None:
    clock = RedisClock()
    clock.learn(START_MS, 1)
    clock.learn(START_MS + 3_600_000, 1.5)
    assert clock.at_most(2) >= START_MS + 3_600_500
    clock.learn(START_MS + 1_500, 2.5)
    assert clock.at_most(3) <= START_MS + 2_001
