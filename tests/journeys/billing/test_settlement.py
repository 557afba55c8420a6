"""A call is settled once, however it ends: usage equals the events' tokens, and no reservation remains.

The whole product over two workers. Duplicated and reordered batches: tests/contracts/redis/test_admission_machine.py.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from policy.billing import Tokens
from tests.journeys.billing_faults import REDIS_MAY_LOSE_S, Event
from tests.journeys.conftest import Stage
from tests.journeys.product import kill, models
from tests.ports import own_port
from tests.upstream import ScriptedUpstream
from tests.upstream.questions import Question, answer_question
from tests.waiting import eventually

TIGHT = 1_000_000
NEVER_REACHED = 1_000_000_000
BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class Account:
    """A group with a key. Its tightest TOKEN limit has the threshold `TIGHT`."""

    entity: str
    group_id: str
    key: str


@dataclass
class SettlementScenario:
    """Two accounts below one parent. One has a tight limit per minute, the other per day."""

    stage: Stage
    upstream: ScriptedUpstream
    root: str
    accounts: Sequence[Account]
    calls: int = 0
    """Number of calls that each account has made."""

    def request(self, account: Account, ending: str, tokens: Tokens, **more: Any) -> Any:
        self.calls += account is self.accounts[0]
        body = {"model": self.stage.slug, "messages": [{"role": "user", "content": Question(tokens, 3, 0).text()}]}
        data = json.dumps(body | {"user": ending} | more).encode()
        headers = {
            "Authorization": f"Bearer {account.key}",
            "Content-Type": "application/json",
            "X-Request-Id": f"{ending.replace(' ', '-')}-{self.calls}",
        }
        url = self.stage.product.proxy + "/v1/chat/completions"
        return self.stage.session.post(url, data=data, headers=headers, timeout=aiohttp.ClientTimeout(total=30))

    async def ask(self, ending: str, tokens: Tokens, **more: Any) -> list[int]:
        """Make one call with each account. Return the statuses; 0 for an answer that was cut off."""
        statuses = []
        for account in self.accounts:
            try:
                async with self.request(account, ending, tokens, **more) as answer:
                    await answer.read()
                    statuses.append(answer.status)
            except aiohttp.ClientError:
                statuses.append(0)
        return statuses

    async def disconnect_before_the_first_byte(self) -> None:
        waiting_before = self.upstream.gate.arrivals

        async def wait(account: Account) -> None:
            async with self.request(account, "waits", Tokens(input=9, output=9, cached_input=0)):
                raise AssertionError("answered")

        calls = [asyncio.create_task(wait(account)) for account in self.accounts]
        await self.stage.until(
            lambda: self._waiting_at_the_gate(waiting_before + len(calls)), "the upstream has the calls"
        )
        for task in calls:
            task.cancel()
        await asyncio.wait(calls)

    @contextlib.asynccontextmanager
    async def partly_read_streams(self) -> AsyncIterator[list[aiohttp.ClientResponse]]:
        """Open one stream for each account and read its first piece."""
        async with contextlib.AsyncExitStack() as stack:
            answers = []
            for account in self.accounts:
                request = self.request(account, "stops", Tokens(input=9, output=9, cached_input=0), stream=True)
                answer = await stack.enter_async_context(request)
                assert b"some " in await answer.content.readline()
                answers.append(answer)
            yield answers
            for answer in answers:
                answer.close()

    async def _waiting_at_the_gate(self, count: int) -> bool:
        return self.upstream.gate.arrivals == count

    async def check(self) -> dict[str, list[Event]]:
        """Check events, usage and reservations once everything is settled. Return the events by account."""
        events_of = {account.entity: await self._check(account) for account in self.accounts}
        due = sum(event.tokens.total for events in events_of.values() for event in events)
        await self.stage.until(lambda: self._has_used(self.root, {"TOKEN": due}), f"the parent has used {due}")
        for account in self.accounts:
            due = sum(event.tokens.total for event in events_of[account.entity])
            assert await self._used_and_reserved(account) == due, f"something stays reserved by {account.entity}"
        return events_of

    async def _check(self, account: Account) -> list[Event]:
        events = [Event.of(item) for item in await self.stage.events_of(account.entity, self.calls)]
        assert len(events) == len({event.key for event in events}) == self.calls, events
        assert len({event.request_id for event in events}) == self.calls, events
        due = {"TOKEN": sum(event.tokens.total for event in events), "REQUEST": self.calls}
        await self.stage.until(lambda: self._has_used(account.group_id, due), f"{account.entity} has used {due}")
        return events

    async def _has_used(self, group_id: str, due: dict[str, int]) -> bool:
        status, answer = await self.stage.operator.ask("GET", f"/v1/gateway/groups/{group_id}/usage")
        return status == 200 and {item["type"]: item["current_usage"] for item in answer["items"]} == due

    async def _used_and_reserved(self, account: Account) -> int:
        """The used and reserved tokens of the tightest TOKEN limit, read from one more call of known cost."""
        body = {"model": self.stage.slug, "messages": [{"role": "user", "content": "1/1/0/1/0"}], "max_tokens": 1}
        data = json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {account.key}", "Content-Type": "application/json"}
        url = self.stage.product.proxy + "/v1/chat/completions"
        async with self.stage.session.post(url, data=data, headers=headers) as answer:
            assert answer.status == 200
            assert answer.headers["x-ratelimit-limit-tokens"] == str(TIGHT)
            own = -(-len(data) // BYTES_PER_TOKEN) + 1
            return TIGHT - int(answer.headers["x-ratelimit-remaining-tokens"]) - own


async def create_scenario(stage: Stage, upstream: ScriptedUpstream) -> SettlementScenario:
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, upstream.url))
    root = await stage.operator.group(
        stage.name, models(stage.slug, ("TOKEN", "DAY", 2 * NEVER_REACHED)), limit_enforcement="CASCADING"
    )
    daily = ("REQUEST", "DAY", NEVER_REACHED)
    limits = {
        "by-minute": [daily, ("TOKEN", "DAY", NEVER_REACHED), ("TOKEN", "MINUTE", TIGHT)],
        "by-day": [daily, ("TOKEN", "DAY", TIGHT), ("TOKEN", "MINUTE", NEVER_REACHED)],
    }
    accounts = []
    for name, own in limits.items():
        entity = f"{stage.name}-{name}"
        group = await stage.operator.group(entity, models(stage.slug, *own), parent_group_id=root)
        accounts.append(Account(entity, group, await stage.operator.key(group)))
    return SettlementScenario(stage, upstream, root, accounts)


@pytest.fixture
async def question_upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=answer_question, port=own_port()) as upstream:
        upstream.gate.close()
        yield upstream


async def test_each_call_is_settled_once_for_every_kind_of_ending(
    stage: Stage, question_upstream: ScriptedUpstream
) -> None:
    scenario = await create_scenario(stage, question_upstream)
    assert await scenario.ask("", Tokens(input=1000, output=200, cached_input=100)) == [200, 200]
    assert await scenario.ask("", Tokens(input=3000, output=400, cached_input=0), stream=True) == [200, 200]
    assert await scenario.ask(
        "", Tokens(input=5000, output=600, cached_input=0), stream=True, stream_options={"include_usage": True}
    ) == [200, 200]
    assert await scenario.ask("refuses", Tokens(input=7, output=7, cached_input=0)) == [500, 500]
    assert await scenario.ask("hangs up", Tokens(input=7, output=7, cached_input=0)) == [502, 502]
    assert await scenario.ask("cuts", Tokens(input=7, output=7, cached_input=0), stream=True) == [0, 0]
    await scenario.disconnect_before_the_first_byte()
    async with scenario.partly_read_streams() as answers:
        for answer in answers:
            answer.close()
    for events in (await scenario.check()).values():
        tokens_by_request = {event.request_id: event.tokens for event in events}
        reported = {id: tokens_by_request.pop(id) for id in ("-1", "-2", "-3")}
        assert list(reported.values()) == [
            Tokens(input=1000, output=200, cached_input=100),
            Tokens(input=3000, output=400, cached_input=0),
            Tokens(input=5000, output=600, cached_input=0),
        ]
        assert {id for id, tokens in tokens_by_request.items() if tokens.total} == {"cuts-6", "stops-8"}, (
            "only calls with delivered text are billed"
        )


async def test_calls_of_a_killed_worker_are_settled_at_once(
    killable_stage: Stage, question_upstream: ScriptedUpstream
) -> None:
    scenario = await create_scenario(killable_stage, question_upstream)
    async with scenario.partly_read_streams():
        for worker in killable_stage.product.processes("proxy.worker"):
            kill(worker)
        await scenario.check()


async def test_journaled_settlements_are_applied_after_all_processes_were_killed(
    killable_stage: Stage, question_upstream: ScriptedUpstream
) -> None:
    scenario = await create_scenario(killable_stage, question_upstream)
    assert await scenario.ask("", Tokens(input=1000, output=200, cached_input=100)) == [200, 200]
    async with scenario.partly_read_streams():
        await asyncio.sleep(REDIS_MAY_LOSE_S)
        killable_stage.product.kill()
    killable_stage.product.start()
    await scenario.check()


async def test_settlements_are_applied_after_redis_restarts(
    killable_stage: Stage, question_upstream: ScriptedUpstream
) -> None:
    scenario = await create_scenario(killable_stage, question_upstream)
    async with scenario.partly_read_streams() as answers:
        await asyncio.sleep(REDIS_MAY_LOSE_S)
        (redis,) = killable_stage.product.processes("redis-server")
        kill(redis)
        question_upstream.gate.open()
        for answer in answers:
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        await eventually(lambda: killable_stage.product.processes("redis-server") not in ([], [redis]), "a new Redis")
    await scenario.check()
