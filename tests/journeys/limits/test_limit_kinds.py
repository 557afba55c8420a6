"""Kinds of limits on a running product: what DAY and MONTH limits start from, and a kind from command to refusal."""

import asyncio
import subprocess

import pytest

from policy.billing import Tokens
from policy.limits.kinds import LimitType
from tests.journeys.conftest import Stage
from tests.journeys.limits.test_limits_live import Answer
from tests.journeys.limits.test_limits_live import ask as call
from tests.journeys.product import models

REQUESTS_A_DAY = ("REQUEST", "DAY")
REQUESTS_A_MONTH = ("REQUEST", "MONTH")
IN_A_ROW = 8
"""Number of equal answers in a row that come from both workers."""


class Caller:
    """A caller of a group, and how many of its calls were admitted."""

    def __init__(self, stage: Stage, group: str, key: str) -> None:
        self.stage = stage
        self.group = group
        self.key = key
        self.admitted = 0

    async def call(self) -> Answer:
        answer = await call(self.stage, self.key)
        self.admitted += answer.status == 200
        return answer

    async def set_limits(self, *limits: tuple[str, str, int]) -> None:
        """Set them when the events of all calls are committed."""
        await self.stage.events_of(self.stage.name, self.admitted)
        path = f"/v1/gateway/groups/{self.group}"
        await self.stage.operator.call("PATCH", path, {"models": models(self.stage.slug, *limits)})

    async def admitted_under(self, limit: int) -> int:
        """Call until both workers refuse, and return how many calls were admitted under this limit."""
        admitted = 0
        refused = 0

        async def is_full() -> bool:
            nonlocal admitted, refused
            answer = await self.call()
            its_limit = answer.headers.get("x-ratelimit-limit-requests")
            refused = refused + 1 if answer.status == 429 and its_limit == str(limit) else 0
            admitted += answer.status == 200 and its_limit == str(limit)
            return refused == IN_A_ROW

        await self.stage.until(is_full, f"the limit of {limit} refuses")
        return admitted


@pytest.fixture
async def caller(stage: Stage) -> Caller:
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, stage.upstream.url))
    group = await stage.operator.group(stage.name, models(stage.slug))
    return Caller(stage, group, await stage.operator.key(group))


async def test_usage_limits_admit_what_the_committed_calls_left_of_them(caller: Caller) -> None:
    answers = await asyncio.gather(*(caller.call() for _ in range(10)))
    assert [answer.status for answer in answers] == [200] * 10
    await caller.set_limits((*REQUESTS_A_DAY, 15), (*REQUESTS_A_MONTH, 13))
    assert await caller.admitted_under(13) == 3

    raised = caller.admitted + 2
    await caller.set_limits((*REQUESTS_A_DAY, raised), (*REQUESTS_A_MONTH, 10_000))
    assert await caller.admitted_under(raised) == 2

    await caller.set_limits()
    free = 0

    async def is_free() -> bool:
        nonlocal free
        free = free + 1 if (await caller.call()).status == 200 else 0
        return free == IN_A_ROW

    await caller.stage.until(is_free, "no limit is left")
    added_again = caller.admitted + 4
    await caller.set_limits((*REQUESTS_A_MONTH, added_again))
    assert await caller.admitted_under(added_again) == 4


def run(stage: Stage, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the journeys' workspace. Other journeys may have made more workspaces."""
    return stage.product.run(*words, "--workspace", "acme", "--data", str(stage.product.data))


def set_limit(stage: Stage, limit: str) -> None:
    result = run(stage, "groups", "set", stage.name, "--limit", f"{stage.slug}:{limit}")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("kind_type", [LimitType.OUTPUT_TOKEN, LimitType.UNCACHED_INPUT_TOKEN])
async def test_kind_set_by_a_command_is_enforced_named_counted_and_exported(
    caller: Caller, kind_type: LimitType
) -> None:
    stage = caller.stage
    set_limit(stage, f"{kind_type}/MONTH=15")

    async def refusal() -> Answer | None:
        answer = await caller.call()
        return answer if answer.status == 429 else None

    refused: Answer = await stage.until(refusal, "the tokens are used up")
    assert f"15 {kind_type} per MONTH" in refused.body["error"]
    assert int(refused.headers["retry-after"]) >= 1
    counted = f'tollgate_limit_decisions_total{{outcome="refused",type="{kind_type}",unit="MONTH"}}'

    async def is_counted() -> bool:
        async with stage.session.get(stage.product.admin + "/metrics") as answer:
            return counted in await answer.text()

    await stage.until(is_counted, "the refusal is counted")

    events = await stage.events_of(stage.name, caller.admitted)
    tokens = [
        Tokens(
            input=event["tokens"]["inputTokens"],
            output=event["tokens"]["outputTokens"],
            cached_input=event["tokens"]["cachedInputTokens"],
        )
        for event in events
    ]
    (amount_of_call,) = set(map(kind_type.amount, tokens))

    async def is_settled() -> bool:
        """Calls that a worker admitted before it had the limit do not count."""
        (item,) = (await stage.operator.call("GET", f"/v1/gateway/groups/{caller.group}/usage"))["items"]
        assert (item["type"], item["unit"]) == (kind_type, "MONTH")
        calls, rest = divmod(item["current_usage"], amount_of_call)
        return bool(rest == 0 and 15 <= calls * amount_of_call <= amount_of_call * len(events))

    await stage.until(is_settled, "all calls are settled")
    exported = run(stage, "export")
    assert exported.returncode == 0, exported.stderr
    assert kind_type in exported.stdout
    assert "MONTH" in exported.stdout

    set_limit(stage, "REQUEST/MINUTE=0")

    async def is_closed() -> bool:
        answer = await caller.call()
        return answer.status == 429 and "0 REQUEST per MINUTE" in answer.body["error"]

    await stage.until(is_closed, "a threshold of 0 refuses every call")
