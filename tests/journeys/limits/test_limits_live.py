"""Limits that change, and limits over time: the current window, exact retry times, midnight by Redis' clock, tiers.

The whole product over two workers. Window boundaries: tests/contracts/redis/test_counters.py.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.conftest import Stage
from tests.journeys.limits.own_product import own_product
from tests.journeys.product import models
from tests.ports import own_port
from tests.redis_server import REDIS_BINARIES
from tests.stepped_clock import COMPILER, SteppedClock
from tests.stepped_clock import MISSING as NO_COMPILER
from tests.upstream import ScriptedUpstream
from tests.upstream.questions import answer_question

DAY_S = 86_400
REQUESTS = ("REQUEST", "MINUTE")
TOKENS = ("TOKEN", "MINUTE")


@dataclass(frozen=True)
class Answer:
    """One answer, and the times between which it was decided."""

    sent_s: float
    received_s: float
    status: int
    headers: Any
    body: Any

    def wait_s(self, of: "Answer", window_s: float) -> set[int]:
        """The correct waits, in whole seconds, for a window that began with the answer `of`."""
        longest = window_s - (self.sent_s - of.received_s)
        shortest = window_s - (self.received_s - of.sent_s)
        return set(range(math.ceil(shortest), math.ceil(longest) + 1))


async def ask(stage: Stage, key: str, content: str = "10/5/0/1/0") -> Answer:
    """Make one call on a connection of its own, so that the kernel spreads calls over the workers."""
    sent_s = time.time()
    body = {"model": stage.slug, "messages": [{"role": "user", "content": content}]}
    headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
    async with stage.session.post(stage.product.proxy + "/v1/chat/completions", json=body, headers=headers) as answer:
        body = await answer.json()
        return Answer(sent_s, time.time(), answer.status, answer.headers, body)


async def statuses(stage: Stage, key: str, calls: int) -> list[int]:
    return sorted(answer.status for answer in await asyncio.gather(*(ask(stage, key) for _ in range(calls))))


@pytest.fixture
async def question_upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(default=answer_question, port=own_port()) as upstream:
        yield upstream


@pytest.fixture
async def stage_with_endpoint(stage: Stage, question_upstream: ScriptedUpstream) -> Stage:
    """A stage with an endpoint whose upstream answers questions."""
    await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, question_upstream.url))
    return stage


async def change(stage: Stage, key: str, group: str, *limits: tuple[str, str, int]) -> None:
    """Change the limits. Return when the headers of all workers show the new ones."""
    await stage.operator.call("PATCH", f"/v1/gateway/groups/{group}", {"models": models(stage.slug, *limits)})
    expected = {f"x-ratelimit-limit-{type.lower()}s": str(threshold) for type, _, threshold in limits}
    in_a_row = 0

    async def shown_to_all() -> bool:
        """Each check is a call that counts."""
        nonlocal in_a_row
        headers = {name.lower(): value for name, value in (await ask(stage, key)).headers.items()}
        limits = {name: value for name, value in headers.items() if name.startswith("x-ratelimit-limit-")}
        in_a_row = in_a_row + 1 if limits == expected else 0
        return in_a_row == 8

    await stage.until(shown_to_all, f"eight answers in a row show {expected}")


async def test_changed_limits_apply_to_the_current_window(stage_with_endpoint: Stage) -> None:
    stage = stage_with_endpoint
    group = await stage.operator.group(stage.name, models(stage.slug, (*REQUESTS, 50)))
    key = await stage.operator.key(group)
    assert await statuses(stage, key, 20) == [200] * 20
    await change(stage, key, group, (*REQUESTS, 10))
    assert await statuses(stage, key, 5) == [429] * 5, (
        "lowered below the usage: refused until enough calls have left the window"
    )
    await change(stage, key, group, (*REQUESTS, 80))
    used_count = 80 - int((await ask(stage, key)).headers["x-ratelimit-remaining-requests"])
    assert 20 < used_count < 80, "what was admitted before still counts"
    assert await statuses(stage, key, 80) == [200] * (80 - used_count) + [429] * used_count
    await change(stage, key, group)
    assert await statuses(stage, key, 10) == [200] * 10, "removed: no limit applies"
    await change(stage, key, group, (*REQUESTS, 80))
    assert await statuses(stage, key, 5) == [429] * 5, "added again: its window has not passed"
    await change(stage, key, group, (*REQUESTS, 80), (*TOKENS, 100))
    assert await statuses(stage, key, 5) == [429] * 5


async def test_added_limit_applies_to_later_calls(stage_with_endpoint: Stage) -> None:
    stage = stage_with_endpoint
    parent = await stage.operator.group(stage.name, models(stage.slug), limit_enforcement="CASCADING")
    child = await stage.operator.group(f"{stage.name}-child", models(stage.slug), parent_group_id=parent)
    key = await stage.operator.key(child)
    assert await statuses(stage, key, 10) == [200] * 10
    await change(stage, key, parent, (*REQUESTS, 30))
    remaining = int((await ask(stage, key)).headers["x-ratelimit-remaining-requests"])
    assert await statuses(stage, key, 40) == [200] * remaining + [429] * (40 - remaining)


async def test_retry_after_is_exact_to_the_second(stage_with_endpoint: Stage) -> None:
    stage = stage_with_endpoint
    key = await stage.operator.key(
        await stage.operator.group(stage.name, models(stage.slug, (*REQUESTS, 2), (*TOKENS, 10_000)))
    )
    first = await ask(stage, key)
    await asyncio.sleep(1.6)  # so that waits from the first and from the second call differ
    second = await ask(stage, key)
    refusal = await ask(stage, key)
    assert [answer.status for answer in (first, second, refusal)] == [200, 200, 429]
    assert int(refusal.headers["retry-after"]) in refusal.wait_s(first, 60.001)
    assert seconds(refusal.headers["x-ratelimit-reset-requests"]) in refusal.wait_s(second, 60.001)
    assert seconds(refusal.headers["x-ratelimit-reset-tokens"]) in refusal.wait_s(second, 60.001)
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in (first, second, refusal)] == ["1", "0", "0"]


def seconds(span: str) -> int:
    """A duration such as 59.2s, 1m1s or 980ms, rounded up."""
    if span.endswith("ms"):
        return math.ceil(int(span[:-2]) / 1000)
    minutes, _, rest = span.rpartition("m")
    return 60 * int(minutes or 0) + math.ceil(float(rest[:-1]))


async def test_caller_that_waits_for_retry_after_is_admitted(stage_with_endpoint: Stage) -> None:
    stage = stage_with_endpoint
    key = await stage.operator.key(await stage.operator.group(stage.name, models(stage.slug, ("REQUEST", "SECOND", 3))))
    for _ in range(3):
        answers = await asyncio.gather(*(ask(stage, key) for _ in range(6)))  # few: they must not last a second
        refusals = [answer for answer in answers if answer.status == 429]
        assert refusals
        waits_s = [int(answer.headers["retry-after"]) for answer in refusals]
        assert set(waits_s) <= {1, 2}
        last = max(refusals, key=lambda answer: answer.received_s)
        await asyncio.sleep(last.received_s + int(last.headers["retry-after"]) - time.time())
        assert (await ask(stage, key)).status == 200
        await asyncio.sleep(1.01)  # that call leaves the window


@pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)
async def test_daily_limit_resets_at_midnight_by_redis_clock(
    tmp_path: Path, question_upstream: ScriptedUpstream
) -> None:
    """Step the clock of Redis alone: it is a minute before midnight there, whatever the proxy's clock says."""
    clock = SteppedClock(tmp_path)
    async with own_product(tmp_path, clock.of_redis_alone(REDIS_BINARIES[0])) as stage:
        await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, question_upstream.url))
        group = await stage.operator.group("own", models(stage.slug, ("REQUEST", "DAY", 2), ("TOKEN", "DAY", 10_000)))
        key = await stage.operator.key(group)
        now_s = time.time()
        clock.step(int(DAY_S - now_s % DAY_S) - 60)
        midnight_s = (now_s + clock.offset_s) // DAY_S * DAY_S + DAY_S - clock.offset_s
        assert await statuses(stage, key, 3) == [200, 200, 429]
        refusal = await ask(stage, key)
        wait_range = range(math.ceil(midnight_s - refusal.received_s), math.ceil(midnight_s - refusal.sent_s) + 1)
        assert int(refusal.headers["retry-after"]) in wait_range
        assert seconds(refusal.headers["x-ratelimit-reset-requests"]) in wait_range
        before = await usage(stage, group)
        await stage.until(lambda: used(stage, group, {"REQUEST": 2, "TOKEN": 30}), "settled before midnight")
        clock.step(math.ceil(midnight_s - time.time()))
        await asyncio.sleep(1.01)  # a worker may refuse without Redis for up to a second
        await stage.until(lambda: used(stage, group, {"REQUEST": 0, "TOKEN": 0}), "a new day")
        assert await statuses(stage, key, 3) == [200, 200, 429]
        after = await usage(stage, group)
        assert [item["reset_at"] < later["reset_at"] for item, later in zip(before, after, strict=True)] == [True] * 2


@pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)
async def test_second_on_a_wrong_redis_clock_freezes_no_limit_and_is_told(
    tmp_path: Path, question_upstream: ScriptedUpstream
) -> None:
    clock = SteppedClock(tmp_path)
    clock.keep_from_midnight(2 * 3600)  # the day's count is read at the end
    async with own_product(tmp_path, clock.of_redis_alone(REDIS_BINARIES[0])) as stage:
        await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, question_upstream.url))
        group = await stage.operator.group("own", models(stage.slug, (*REQUESTS, 3), ("REQUEST", "DAY", 100)))
        key = await stage.operator.key(group)
        assert await statuses(stage, key, 5) == [200] * 3 + [429] * 2
        before = await jumps(stage)
        clock.step(3600)
        assert await allowed(stage, key, 5) == 3
        clock.step(-3600)
        await stage.until(lambda: has_jumped(stage, key, before + 2), "both steps are counted")
        refusal = await ask(stage, key)
        assert (refusal.status, int(refusal.headers["retry-after"]) <= 61) == (429, True)
        async with stage.session.get(stage.product.admin + "/readyz") as answer:
            degraded = (await answer.json())["degraded"]
        assert [text.partition(": ")[0] for text in degraded] == ["redis_clock"]
        assert "stepped back by 3600" in degraded[0]
        result = await asyncio.to_thread(stage.product.run, "doctor", "--data", str(stage.product.data))
        assert "redis_clock: Redis: its clock stepped back by 3600" in " ".join(result.stdout.split())
        await stage.until(lambda: logs(stage, "Degraded: redis_clock"), "it is logged")
        clock.step(61)
        assert await allowed(stage, key, 5) == 3
        await stage.until(lambda: used(stage, group, {"REQUEST": 9}), "the day has counted all of it")


@pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)
async def test_machine_set_back_by_an_hour_freezes_no_limit(
    tmp_path: Path, question_upstream: ScriptedUpstream
) -> None:
    """Limits of groups and of the management API; all processes have the stepped clock."""
    clock = SteppedClock(tmp_path)
    async with own_product(tmp_path, clock.environment) as stage:
        await stage.operator.endpoint(stage.slug, await stage.operator.model(stage.name, question_upstream.url))
        minutely = await stage.operator.key(await stage.operator.group("a", models(stage.slug, (*REQUESTS, 3))))
        secondly = await stage.operator.key(
            await stage.operator.group("b", models(stage.slug, ("REQUEST", "SECOND", 1)))
        )
        assert await statuses(stage, minutely, 5) == [200] * 3 + [429] * 2
        assert 200 in await statuses(stage, secondly, 3)
        clock.step(-3600)
        await asyncio.sleep(1.01)  # a worker may refuse without Redis for up to a second
        refusal = await ask(stage, minutely)
        assert (refusal.status, int(refusal.headers["retry-after"]) <= 61) == (429, True)
        await stage.until(lambda: passes(stage, secondly), "the next second admits again")
        assert (await stage.operator.ask("GET", "/v1/gateway/groups"))[0] == 200
        clock.step(61)
        assert await allowed(stage, minutely, 5) == 3


async def allowed(stage: Stage, key: str, calls: int) -> int:
    """Count the calls that pass once workers ask Redis again; for up to a second they may refuse by themselves."""
    await asyncio.sleep(1.01)
    return (await statuses(stage, key, calls)).count(200)


async def logs(stage: Stage, text: str) -> bool:
    return text in stage.product.log.read_text()


async def jumps(stage: Stage) -> int:
    """Return the number of steps of Redis' clock that the machine has counted."""
    async with stage.session.get(stage.product.admin + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("tollgate_redis_clock_jumps_total"))))


async def has_jumped(stage: Stage, key: str, times: int) -> bool:
    """Makes a call: a process notices a step when it asks Redis."""
    await ask(stage, key)
    return await jumps(stage) >= times


async def usage(stage: Stage, group: str) -> list[Any]:
    return list((await stage.operator.call("GET", f"/v1/gateway/groups/{group}/usage"))["items"])


async def used(stage: Stage, group: str, due: dict[str, int]) -> bool:
    return {item["type"]: item["current_usage"] for item in await usage(stage, group)} == due


async def test_model_api_calls_count_against_the_workspaces_tier(
    tmp_path: Path, question_upstream: ScriptedUpstream
) -> None:
    """The tier counts over all groups, changes live, and is not charged for a call that a group's limit refuses."""
    async with own_product(tmp_path, {"TOLLGATE_MODEL_API_BASE_URL": question_upstream.url}) as stage:
        secret = await stage.operator.call("POST", "/v1/secrets", {"name": "model-api", "value": "sk-upstream"})
        target = {"provider": "PLATFORM_MODEL_API", "secret_id": secret["id"], "target_model": "m"}
        await stage.operator.call("POST", "/v1/gateway/endpoints", {"slug": stage.slug, "targets": [target]})
        roomy = [
            await stage.operator.key(await stage.operator.group(name, models(stage.slug, (*REQUESTS, 1000))))
            for name in ("blue", "green")
        ]
        strict = await stage.operator.key(await stage.operator.group("strict", models(stage.slug, (*REQUESTS, 1))))
        assert await statuses(stage, strict, 10) == [200] + [429] * 9
        answers = [await ask(stage, key) for key in roomy * 8]
        assert [answer.status for answer in answers] == [200] * 14 + [429] * 2, (
            "of 15 a minute, one is the strict one's"
        )
        assert "15 REQUEST per MINUTE" in answers[-1].body["error"]
        assert answers[-1].headers["x-ratelimit-limit-requests"] == "15"
        assert int(answers[-1].headers["retry-after"]) <= 61
        stage.product.command("workspace", "set", "acme", "--tier", "verified")
        await stage.until(lambda: passes(stage, roomy[0]), "the higher tier")
        assert (await ask(stage, roomy[0], "600000/1/0/1/0")).status == 200
        refusal = await ask(stage, roomy[1])
        assert (refusal.status, refusal.headers["x-ratelimit-remaining-tokens"]) == (429, "0")
        assert "500000 TOKEN per MINUTE" in refusal.body["error"]


async def passes(stage: Stage, key: str) -> bool:
    return (await ask(stage, key)).status == 200
