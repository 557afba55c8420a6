"""The counters' client on a real Redis: batching, and what it does when Redis stalls, dies or comes back."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from policy.limits.effective import Plan
from policy.limits.settlement import Estimate, Reservation, Settlement
from proxy.accounting.reservations import LimitHit, LimitStatus, Taken
from proxy.edges.redis.admission_requests import Take
from proxy.edges.redis.counters import CountersOptions, RedisCounters
from proxy.edges.redis.nodes.pipelined_client import RedisClientOptions
from proxy.errors import CountersUnavailableError
from tests.contracts.redis.counters_world import RPM, TPM, group, plan_of, simple
from tests.redis_counters import pending_settlements
from tests.redis_server import RedisServer, private_redis
from tests.waiting import PATIENCE_S, eventually

BOTH_LOOPS = True
OPTIONS = CountersOptions(client=RedisClientOptions(deadline_s=1.0))
"""A longer deadline than in production, for a machine that is busy with other tests."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with private_redis(["--appendonly", "yes", "--appendfsync", "always"]) as running:
        yield running


@pytest.fixture
async def counters(server: RedisServer) -> AsyncIterator[RedisCounters]:
    new_counters = RedisCounters(server.url, "worker-1", options=OPTIONS)
    await new_counters.start()
    yield new_counters
    await new_counters.close()


def client(server: RedisServer) -> "redis.Redis":
    return redis.Redis(unix_socket_path=str(server.socket_path))


def script_calls(server: RedisServer) -> int:
    with client(server) as own:
        stats = own.info("commandstats")
    return sum(int(stats[name]["calls"]) for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


async def take(counters: RedisCounters, plan: Plan, estimate: int = 1) -> Taken:
    answer = await counters.take(plan, Estimate(estimate))
    assert isinstance(answer, Taken), answer
    return answer


async def is_taken(counters: RedisCounters) -> bool:
    """Return whether Redis admits a call within the deadline: a busy machine may need several."""
    return await outcomes(counters, simple(rpm=5), 1) == [Taken]


async def settle(counters: RedisCounters, admission: Taken, actual: int) -> None:
    for reservation in admission.reservations:
        counters.settle(reservation, number=next(counters.numbers), actual_tokens=actual)
    await eventually(lambda: pending_settlements(counters) == 0)


async def tokens_left(counters: RedisCounters, plan: Plan) -> int:
    tokens = (await take(counters, plan, 0)).tokens
    assert tokens is not None
    return tokens.remaining


async def outcomes(counters: RedisCounters, plan: Plan, calls: int) -> list[type]:
    """The number of answers of each type to concurrent requests."""
    answers = await asyncio.gather(*(counters.take(plan, Estimate(1)) for _ in range(calls)), return_exceptions=True)
    return [type(answer) for answer in answers]


async def test_requests_of_one_tick_share_a_read_and_those_of_one_plan_a_command(
    server: RedisServer, counters: RedisCounters
) -> None:
    plans = [plan_of(group(f"g{n}", {RPM: 100, TPM: 100_000})) for n in range(5)]
    await take(counters, plans[0])
    with client(server) as own:
        calls = script_calls(server)
        reads = own.info("stats")["total_reads_processed"]
        hot = [counters.take(plans[0], Estimate(10)) for _ in range(50)]
        others = [counters.take(plan, Estimate(10)) for plan in plans[1:] for _ in range(2)]
        admissions = await asyncio.gather(*hot, *others)
        assert own.info("stats")["total_reads_processed"] - reads == 1 + 1  # ours, and that of asking
    assert script_calls(server) - calls == len(plans)
    assert all(isinstance(admission, Taken) for admission in admissions)
    assert await tokens_left(counters, plans[0]) == 100_000 - 1 - 500


async def test_batch_admits_in_order_until_a_limit_refuses(counters: RedisCounters) -> None:
    assert await outcomes(counters, simple(rpm=7), 10) == [Taken] * 7 + [LimitHit] * 3
    tokens = simple(tpm=100)
    answers = await asyncio.gather(*(counters.take(tokens, Estimate(60)) for _ in range(4)))
    assert [type(answer) for answer in answers] == [Taken, Taken, LimitHit, LimitHit]


async def test_batch_reserves_what_each_request_asks_for(counters: RedisCounters) -> None:
    """The estimates' numbers of digits differ, and all have as many in the command."""
    plan = simple(tpm=10_000)
    estimates = [5, 90, 1234, 8, 0]
    admissions = await asyncio.gather(*(take(counters, plan, estimate) for estimate in estimates))
    assert [admission.reservations[0].reserved_tokens for admission in admissions] == estimates
    assert await tokens_left(counters, plan) == 10_000 - sum(estimates)


async def test_scripts_are_loaded_again_after_noscript(server: RedisServer, counters: RedisCounters) -> None:
    plan = simple(tpm=1000)
    admission = await take(counters, plan, 100)
    with client(server) as own:
        own.script_flush()
    assert (await take(counters, plan, 100)).tokens == LimitStatus(1000, 800, 60_001)
    with client(server) as own:
        own.script_flush()
    await settle(counters, admission, 0)
    assert await tokens_left(counters, plan) == 900


async def test_hard_refusal_is_repeated_from_memory(server: RedisServer, counters: RedisCounters) -> None:
    plan = simple(tpd=100)
    await settle(counters, await take(counters, plan), 100)
    first = await counters.take(plan, Estimate(1))
    calls = script_calls(server)
    assert await outcomes(counters, plan, 50) == [LimitHit] * 50
    assert script_calls(server) == calls
    assert isinstance(first, LimitHit)
    assert first.tokens is not None
    assert 0 < first.hard_retry_after_ms <= first.tokens.reset_ms


async def test_soft_refusal_is_asked_for_again_after_a_tenth_of_a_second(
    server: RedisServer, counters: RedisCounters
) -> None:
    """Any worker may return a request at any moment."""
    plan = simple(rpm=2)
    admission = await take(counters, plan)
    await take(counters, plan)
    assert isinstance(await counters.take(plan, Estimate(1)), LimitHit)
    counters.give_back(admission)
    await eventually(lambda: pending_settlements(counters) == 0)
    assert await outcomes(counters, plan, 2) == [Taken, LimitHit]
    calls = script_calls(server)

    async def asked_again() -> bool:
        await counters.take(plan, Estimate(1))
        return script_calls(server) > calls

    async with asyncio.timeout(PATIENCE_S):
        while not await asked_again():
            await asyncio.sleep(0.01)


async def test_cached_refusal_ends_with_the_connection_and_with_the_policy(
    server: RedisServer, counters: RedisCounters
) -> None:
    plan = simple(rpm=2)
    await outcomes(counters, plan, 3)
    assert await outcomes(counters, simple(rpm=3), 2) == [Taken, LimitHit]
    with client(server) as own:
        own.flushall()  # as a fail-over that lost what was counted
        own.client_kill_filter(_type="normal", skipme=True)
    await eventually(lambda: not counters.available)
    await eventually(lambda: counters.available)
    assert await outcomes(counters, plan, 3) == [Taken, Taken, LimitHit]


async def test_cached_token_refusal_ends_when_this_worker_settles(counters: RedisCounters) -> None:
    plan = simple(tpm=100)
    admission = await take(counters, plan, 100)
    assert await outcomes(counters, plan, 2) == [LimitHit] * 2
    await settle(counters, admission, 0)
    assert await outcomes(counters, plan, 1) == [Taken]


async def test_caller_cancelled_before_the_reply_returns_its_tokens(counters: RedisCounters) -> None:
    plan = simple(tpm=1000, tpd=1000)
    await take(counters, plan, 1)
    for ticks in range(4):  # before it is sent, and on its way
        take_task = asyncio.create_task(counters.take(plan, Estimate(900)))
        for _ in range(ticks):
            await asyncio.sleep(0)
        take_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await take_task
        await asyncio.sleep(0)
        await counters.take(simple(rpm=9), Estimate(0))  # asked after it: its answer has come, too
        await eventually(lambda: pending_settlements(counters) == 0)
        assert await tokens_left(counters, plan) == 999


class CancelsOnDelivery(RedisCounters):
    """Cancels the waiting caller at the moment the answer is delivered."""

    caller: "asyncio.Task[Taken | LimitHit] | None" = None

    def _on_reply(self, take: Take, reply: Any) -> None:
        super()._on_reply(take, reply)
        if self.caller is not None and isinstance(reply, list):  # before that, Redis asks for the script
            self.caller.cancel()
            self.caller = None


async def test_caller_cancelled_with_the_reply_returns_its_tokens(server: RedisServer) -> None:
    counters = CancelsOnDelivery(server.url, "worker-1", options=OPTIONS)
    plan = simple(tpm=1000)
    await counters.start()
    counters.caller = take_task = asyncio.create_task(counters.take(plan, Estimate(900)))
    with pytest.raises(asyncio.CancelledError):
        await take_task
    await eventually(lambda: pending_settlements(counters) == 0)
    assert await tokens_left(counters, plan) == 1000
    await counters.close()


async def test_stall_fails_only_the_commands_in_flight(server: RedisServer, counters: RedisCounters) -> None:
    options = CountersOptions(client=RedisClientOptions(stall_s=PATIENCE_S))
    impatient = RedisCounters(server.url, "worker-2", options=options)
    plan = simple(tpm=1000, rpm=1000)
    await impatient.start()
    await eventually(lambda: impatient.available)
    await take(counters, plan, 1)
    server.pause()
    for _ in range(5):  # the breaker counts commands
        outcomes_task = asyncio.ensure_future(outcomes(impatient, plan, 2))
        while (timer := impatient._nodes.of(0).client._deadline_timer) is None:
            await asyncio.sleep(0)
        assert not outcomes_task.done()  # each has a deadline of its own, whatever else is owed
        assert timer.when() - time.monotonic() <= options.client.deadline_s + 0.001  # uvloop rounds to milliseconds
        assert set(await outcomes_task) == {CountersUnavailableError}
    assert not impatient.available
    assert impatient._nodes.of(0).client.connected
    server.resume()
    await eventually(lambda: impatient.available)
    await eventually(lambda: pending_settlements(impatient) == 0)
    # Redis did admit the calls that it found in its socket, and was told that nobody used them.
    assert await tokens_left(counters, plan) == 999
    await impatient.close()


@pytest.mark.parametrize("slept_s", [0.06, 0.12])
async def test_reply_that_arrived_during_our_own_stall_is_in_time(server: RedisServer, slept_s: float) -> None:
    """The loop is blocked beyond the deadline, until the reply is in the socket."""
    plan = simple(rpm=1000)
    loop = asyncio.get_running_loop()
    counters = RedisCounters(server.url, "worker-1")
    await counters.start()
    await take(counters, plan)
    ours, theirs = socket.socketpair()

    def stand_still() -> None:
        ours.recv(1)
        time.sleep(slept_s)
        for _ in range(2):  # Redis writes the replies of one turn in any order, but those of an earlier turn before
            own.ping()

    with ours, theirs, client(server) as own:
        loop.add_reader(ours, stand_still)
        for _ in range(8):  # more than the breaker bears
            take_task = asyncio.ensure_future(counters.take(plan, Estimate(1)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # it is sent
            theirs.send(b"x")
            assert isinstance(await take_task, Taken)
        loop.remove_reader(ours)
    await counters.close()


async def test_connection_that_owes_a_reply_too_long_is_closed(server: RedisServer) -> None:
    options = CountersOptions(client=RedisClientOptions(stall_s=0.2, connect_timeout_s=0.2))
    counters = RedisCounters(server.url, "worker-1", options=options)
    await counters.start()
    server.pause()
    assert await outcomes(counters, simple(rpm=5), 1) == [CountersUnavailableError]
    await eventually(lambda: not counters._nodes.of(0).client.connected)
    server.resume()
    await eventually(lambda: counters.available)
    await eventually(lambda: is_taken(counters))
    await counters.close()


async def test_open_breaker_fails_commands_at_once(server: RedisServer, counters: RedisCounters) -> None:
    server.kill()
    await eventually(lambda: not counters.available)
    for _ in range(5):
        await outcomes(counters, simple(rpm=5), 2)
    take_task = asyncio.ensure_future(counters.take(simple(rpm=5), Estimate(1)))
    for _ in range(3):  # no deadline is waited for, only ticks
        await asyncio.sleep(0)
    assert isinstance(take_task.exception(), CountersUnavailableError)


async def test_settlements_wait_for_a_killed_redis_to_return(server: RedisServer, counters: RedisCounters) -> None:
    plan = simple(tpm=10_000, tpd=10_000)
    admissions = [await take(counters, plan, 100) for _ in range(5)]
    server.kill()
    await eventually(lambda: not counters.available)
    for admission in admissions:
        counters.settle(admission.reservations[0], number=next(counters.numbers), actual_tokens=30)
    assert set(await outcomes(counters, plan, 3)) == {CountersUnavailableError}
    server.start()
    await eventually(lambda: counters.available and pending_settlements(counters) == 0)
    assert await tokens_left(counters, plan) == 10_000 - 150


async def test_settled_through_stops_before_the_first_unconfirmed_number(
    server: RedisServer, counters: RedisCounters
) -> None:
    """The journal drops settlements up to this number, whatever their keys, so all of them must be confirmed."""
    plans = [plan_of(group(name, {TPM: 100})) for name in ("g1", "g2")]
    reservations = [reservation for plan in plans for reservation in (await take(counters, plan)).reservations]
    assert counters.settled_through == 0
    numbers = [next(counters.numbers) for reservation in reservations]
    server.pause()
    for reservation, number in zip(reservations, numbers, strict=True):
        counters.settle(reservation, number=number, actual_tokens=5)
    await asyncio.sleep(0.05)
    assert counters.settled_through == numbers[0] - 1
    server.resume()
    await eventually(lambda: counters.settled_through == numbers[-1])


async def test_batch_sent_several_times_counts_once(server: RedisServer, counters: RedisCounters) -> None:
    plan = simple(tpd=10_000)
    admissions = [await take(counters, plan, 100) for _ in range(5)]
    for _ in range(3):
        server.pause()
        for admission in admissions:
            counters.settle(admission.reservations[0], number=next(counters.numbers), actual_tokens=30)
        await eventually(lambda: counters._nodes.of(0).client._failures > 0)
        server.resume()
        await eventually(lambda: pending_settlements(counters) == 0)
        admissions = [await take(counters, plan, 100) for _ in range(5)]
    assert await tokens_left(counters, plan) == 10_000 - 3 * 150 - 500


async def test_settlements_of_one_key_share_commands(server: RedisServer, counters: RedisCounters) -> None:
    plan = simple(tpm=10_000_000)
    admissions = await asyncio.gather(*(take(counters, plan, 100) for _ in range(201)))
    await settle(counters, admissions.pop(), 30)
    calls = script_calls(server)
    for admission in admissions:
        counters.settle(admission.reservations[0], number=next(counters.numbers), actual_tokens=30)
    await eventually(lambda: pending_settlements(counters) == 0)
    assert script_calls(server) - calls == 1
    assert await tokens_left(counters, plan) == 10_000_000 - 6_030


async def test_large_batch_is_split_into_several_commands(server: RedisServer, counters: RedisCounters) -> None:
    plan = simple(tpm=10_000_000)
    admission = await take(counters, plan, 0)
    for _ in range(1_700):
        counters.settle(admission.reservations[0], number=next(counters.numbers), actual_tokens=3)
    await eventually(lambda: pending_settlements(counters) == 0)
    assert await tokens_left(counters, plan) == 10_000_000 - 5_100


async def test_next_call_is_not_refused_for_unused_tokens_of_the_last(counters: RedisCounters) -> None:
    """Each call reserves 530 of 100 and uses 20. The next one must find 20 used, however soon it comes."""
    plan = simple(tpm=100)
    for _ in range(5):
        admission = await counters.take(plan, Estimate(530))
        assert isinstance(admission, Taken)
        counters.settle(admission.reservations[0], number=next(counters.numbers), actual_tokens=20)
    assert isinstance(await counters.take(plan, Estimate(530)), LimitHit), "100 of 100 are used"


async def test_close_sends_pending_settlements(server: RedisServer) -> None:
    counters = RedisCounters(server.url, "worker-2", options=OPTIONS)
    plan = simple(tpm=1000)
    await counters.start()
    admission = await take(counters, plan, 500)
    counters.settle(admission.reservations[0], number=next(counters.numbers), actual_tokens=100)
    await counters.close()
    reader = RedisCounters(server.url, "worker-3", options=OPTIONS)
    await reader.start()
    assert await tokens_left(reader, plan) == 900
    await reader.close()


async def test_client_connects_when_redis_starts_later(server: RedisServer) -> None:
    server.kill()
    counters = RedisCounters(server.url, "worker-2", options=OPTIONS)
    await counters.start()
    assert set(await outcomes(counters, simple(rpm=5), 6)) == {CountersUnavailableError}
    with pytest.raises(CountersUnavailableError):
        await counters.replay(
            "dead",
            [
                Settlement(
                    reservation=Reservation(
                        key="tg:{g1|a/b}", buckets=(("g1", 8),), admitted_at_ms=1, reserved_tokens=5
                    ),
                    number=1,
                    actual_tokens=5,
                )
            ],
        )
    server.start()
    await eventually(lambda: counters.available)
    assert await outcomes(counters, simple(rpm=5), 6) == [Taken] * 5 + [LimitHit]
    await counters.close()


async def test_client_reconnects_from_a_read_only_replica(server: RedisServer, counters: RedisCounters) -> None:
    plan = simple(rpm=5)
    await take(counters, plan)
    with client(server) as own:
        own.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert set(await outcomes(counters, plan, 3)) == {CountersUnavailableError}
        own.execute_command("REPLICAOF", "NO", "ONE")
    await eventually(lambda: counters.available)
    assert await outcomes(counters, plan, 5) == [Taken] * 4 + [LimitHit]


async def test_server_that_does_not_speak_resp_is_not_used(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("s") / "s"

    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        writer.close()

    impostor = await asyncio.start_unix_server(babble, path)
    async with impostor:
        counters = RedisCounters(f"unix://{path}", "worker-1", options=OPTIONS)
        await counters.start()
        assert set(await outcomes(counters, simple(rpm=5), 6)) == {CountersUnavailableError}
        await counters.close()


async def test_server_that_never_replies_is_not_used(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("s") / "s"

    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    impostor = await asyncio.start_unix_server(nothing, path)
    async with impostor:
        counters = RedisCounters(f"unix://{path}", "worker-1", options=OPTIONS)
        await counters.start()
        assert set(await outcomes(counters, simple(rpm=5), 6)) == {CountersUnavailableError}
        await counters.close()


async def test_settlements_of_a_dead_worker_are_replayed_once(server: RedisServer, counters: RedisCounters) -> None:
    plan = simple(tpd=10_000)
    other = plan_of(group("g2", {TPM: 10_000}))
    reservations = [(await take(counters, plan, 100)).reservations[0] for _ in range(3)]
    reservations += [(await take(counters, other, 100)).reservations[0] for _ in range(2)]
    settlements = [
        Settlement(reservation=reservation, number=number, actual_tokens=10)
        for number, reservation in enumerate(reservations, 1)
    ]
    supervisor = RedisCounters(server.url, "supervisor", options=OPTIONS)
    await supervisor.start()
    for again in (settlements[:2], settlements, settlements[::-1]):
        await supervisor.replay("dead", again)
    await supervisor.close()
    assert await tokens_left(counters, plan) == 9_970
    assert await tokens_left(counters, other) == 9_980


async def test_returned_reservation_uses_no_settlement_number(server: RedisServer, counters: RedisCounters) -> None:
    plan = simple(tpm=1000)
    for _ in range(3):
        take_task = asyncio.create_task(counters.take(plan, Estimate(100)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        take_task.cancel()
        await asyncio.gather(take_task, return_exceptions=True)
        await counters.take(simple(rpm=9), Estimate(0))
        await eventually(lambda: pending_settlements(counters) == 0)
    await settle(counters, await take(counters, plan, 100), 40)
    assert await tokens_left(counters, plan) == 960


async def test_close_retries_settlements_that_redis_refused(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.edges.redis.settlement_sender._RETRY_S", 3600)
    counters = RedisCounters(server.url, "worker-2", options=OPTIONS)
    plan = simple(tpm=1000)
    await counters.start()
    admission = await take(counters, plan, 500)
    server.kill()
    await eventually(lambda: not counters.available)
    counters.settle(admission.reservations[0], number=next(counters.numbers), actual_tokens=100)
    assert set(await outcomes(counters, simple(rpm=5), 1)) == {CountersUnavailableError}  # its deadline is the same
    server.start()
    await eventually(lambda: counters.available)
    await counters.close()
    reader = RedisCounters(server.url, "worker-3", options=OPTIONS)
    await reader.start()
    assert await tokens_left(reader, plan) == 900
    await reader.close()


async def test_the_journal_is_written_before_settlements_and_returns_are_sent(server: RedisServer) -> None:
    """A settlement whose close record is lost would be settled again, as an orphan's."""
    plan = plan_of(group("g", {TPM: 1000}))
    calls_before: list[int] = []
    options = CountersOptions(client=OPTIONS.client, before_settling=lambda: calls_before.append(script_calls(server)))
    counters = RedisCounters(server.url, "worker-1", options=options)
    await counters.start()
    first = await take(counters, plan)
    second = await take(counters, plan)
    takes = script_calls(server)
    await settle(counters, first, 1)
    counters.give_back(second)
    await eventually(lambda: pending_settlements(counters) == 0)
    await counters.close()
    assert calls_before == [takes, takes + 1]
