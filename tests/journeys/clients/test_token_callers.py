"""Callers with tokens of their company's identity provider, by the stock OpenAI SDK on a running product.

See docs/reference/inference.md#tokens-of-an-identity-provider.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import openai
import pytest

from policy.credentials import token_prefix
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.issuer import Issuer, SigningKey, new_key
from tests.journeys.conftest import Stage, Workspace, stage_of, started
from tests.journeys.product import Product, kill
from tests.ports import own_port
from tests.upstream import ScriptedUpstream

PATH = "/v1/gateway/identity_provider"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> ThrowawayCa:
    return ThrowawayCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def issuer_port() -> int:
    return own_port()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, ca: ThrowawayCa, issuer_port: int) -> Iterator[Workspace]:
    link = Issuer(port=issuer_port).link
    settings = {"TOLLGATE_EGRESS_ALLOW": f"127.0.0.0/8,{link}", "TOLLGATE_EGRESS_CA_FILE": str(ca.ca_file)}
    with started(Product(tmp_path_factory.mktemp("product") / "data", settings=settings)) as workspace:
        yield workspace


@pytest.fixture
async def issuer(ca: ThrowawayCa, issuer_port: int) -> AsyncIterator[Issuer]:
    issuer = Issuer(port=issuer_port)
    await issuer.start(ca)
    yield issuer
    await issuer.stop()


@pytest.fixture
async def stage(
    workspace: Workspace,
    session: aiohttp.ClientSession,
    upstream: ScriptedUpstream,
    numbers: Iterator[int],
    issuer: Issuer,
) -> AsyncIterator[Stage]:
    """A stage whose workspace has the issuer as its identity provider."""
    stage = stage_of(workspace, session, upstream, f"tokens-{next(numbers)}")
    await stage.key_without_limits()
    await stage.operator.call("PUT", PATH, issuer.provider(audience=stage.name))
    yield stage
    await stage.operator.ask("DELETE", PATH)


def token_of(stage: Stage, issuer: Issuer, key: SigningKey | None = None, **claims: Any) -> str:
    return issuer.token(key, aud=stage.name, org=stage.name, **claims)


async def status_of(stage: Stage, token: str) -> int:
    """The status of a call with the stock SDK."""
    try:
        await stage.ask(token)
    except openai.APIStatusError as error:
        refusal = error
    else:
        return 200
    if refusal.status_code == 403:
        assert refusal.response.json() == {"error": "Authentication failed"}
    return refusal.status_code


@contextmanager
def stopped(product: Product) -> Iterator[None]:
    """Control answers nobody."""
    pids = product.processes("-m control --")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def test_token_calls_as_its_group_and_its_event_says_so(stage: Stage, issuer: Issuer) -> None:
    for alg in ("RS256", "EdDSA", "ES256"):
        issuer.keys = [*issuer.keys, new_key(alg, alg)]
    await stage.operator.call("PUT", PATH, issuer.provider(audience=stage.name))

    async def is_known() -> bool:
        return await status_of(stage, token_of(stage, issuer, issuer.keys[-1])) == 200

    await stage.until(is_known, "the keys have arrived")
    for key in issuer.keys:
        assert await status_of(stage, token_of(stage, issuer, key)) == 200
    events = await stage.events_of(stage.name, 5)
    assert {event["apiKeyPrefix"] for event in events} == {token_prefix("user-1")}
    requests = await stage.operator.call("GET", "/v1/gateway/requests", external_entity_id=stage.name)
    assert {item["api_key_prefix"] for item in requests["items"]} <= {token_prefix("user-1")}
    log = stage.product.log.read_text()
    assert token_prefix("user-1") in log
    assert "eyJ" not in log


async def test_faulty_tokens_are_refused_alike(stage: Stage, issuer: Issuer) -> None:
    now_s = int(time.time())
    assert await status_of(stage, token_of(stage, issuer)) == 200
    faults = [
        token_of(stage, issuer, new_key("first")),
        token_of(stage, issuer, new_key("made-up")),
        token_of(stage, issuer, exp=now_s - 61),
        token_of(stage, issuer, nbf=now_s + 900),
        issuer.token(aud="else", org=stage.name),
        issuer.token(aud=stage.name, org="nobody"),
        token_of(stage, issuer, x="y" * 9000),
        token_of(stage, issuer, iss="https://evil.example"),
        token_of(stage, issuer, header={"alg": "none"}),
    ]
    for fault in faults:
        assert await status_of(stage, fault) == 403
    token = token_of(stage, issuer)
    body = b'{"inputs": 1}'
    assert (await stage.post({"Authorization": f"Bearer {token}"}, body, "/models/m/predict"))[0] == 403
    async with stage.session.get(
        stage.product.control + "/v1/gateway/groups", headers={"Authorization": f"Bearer {token}"}
    ) as answer:
        assert answer.status == 403
    async with stage.session.get(
        stage.product.proxy + "/metrics", headers={"Authorization": f"Bearer {token}"}
    ) as answer:
        assert answer.status in (403, 404)


async def test_token_ends_while_it_is_remembered(stage: Stage, issuer: Issuer) -> None:
    token = token_of(stage, issuer, exp=int(time.time()) - 56)  # with the leeway, four seconds are left
    statuses = [await status_of(stage, token)]

    async def has_ended() -> bool:
        statuses.append(await status_of(stage, token))
        return statuses[-1] != 200

    await stage.until(has_ended, "the token has ended")
    assert set(statuses) <= {200, 403}


async def test_keys_roll_over_in_mid_traffic(stage: Stage, issuer: Issuer) -> None:
    first = issuer.keys[0]
    old = token_of(stage, issuer, first)
    statuses: list[int] = []
    ended = asyncio.Event()

    async def call_on() -> None:
        """Call with a token of the issuer's present key, a new one each time."""
        while not ended.is_set():
            statuses.append(await status_of(stage, token_of(stage, issuer, issuer.keys[0], jti=str(time.time_ns()))))

    async def more() -> None:
        goal = len(statuses) + 40

        async def flows() -> bool:
            return len(statuses) >= goal

        await stage.until(flows, "traffic flows")

    callers = [asyncio.create_task(call_on()) for _ in range(4)]
    assert await status_of(stage, old) == 200
    await more()
    await _gap_is_over(stage)
    issuer.requests.clear()
    issuer.keys = [new_key("second"), first]
    await more()
    assert issuer.requests.count("/keys") == 1
    assert await status_of(stage, old) == 200
    await _gap_is_over(stage)
    issuer.keys = issuer.keys[:1]

    async def is_refused() -> bool:
        await status_of(stage, token_of(stage, issuer, new_key("made-up")))  # the keys are fetched again
        return await status_of(stage, old) == 403

    await stage.until(is_refused, "the key is gone, and with it the token that was remembered")
    await more()
    ended.set()
    await asyncio.gather(*callers)
    assert set(statuses) == {200}


async def _gap_is_over(stage: Stage) -> None:
    """Wait until control would fetch the keys at once."""
    fetched_at: str = (await stage.operator.call("GET", PATH))["keys_fetched_at"]

    async def is_over() -> bool:
        at_s = time.time() - 5.5
        return fetched_at < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))

    await stage.until(is_over, "the distance between two attempts is kept")


async def test_made_up_keys_do_not_have_the_issuer_asked(stage: Stage, issuer: Issuer) -> None:
    assert await status_of(stage, token_of(stage, issuer)) == 200
    issuer.requests.clear()
    began_s = time.monotonic()
    made_up = [token_of(stage, issuer, new_key(f"made-up-{number}")) for number in range(60)]
    statuses = await asyncio.gather(*(status_of(stage, token) for token in made_up))
    assert set(statuses) <= {403, 503}
    assert await status_of(stage, token_of(stage, issuer, jti="another")) == 200
    attempts = issuer.requests.count("/keys")
    assert attempts <= 2 + (time.monotonic() - began_s) / 5


async def test_issuer_and_control_may_be_away(stage: Stage, issuer: Issuer, ca: ThrowawayCa) -> None:
    assert await status_of(stage, token_of(stage, issuer)) == 200
    await _gap_is_over(stage)
    await issuer.stop()
    try:
        assert await status_of(stage, token_of(stage, issuer, jti="new")) == 200
        assert await status_of(stage, token_of(stage, issuer, new_key("second"))) == 503
        assert "cannot be fetched" in (await stage.operator.call("GET", PATH))["last_error"]
        with stopped(stage.product):
            before = stage.product.incarnations()
            for pid in stage.product.processes("-m proxy.worker "):
                kill(pid)

            async def are_replaced() -> bool:
                now = stage.product.incarnations()
                return len(now) == len(before) and not set(now) & set(before)

            await stage.until(are_replaced, "the workers are replaced")

            async def serves() -> bool:
                try:
                    return await status_of(stage, token_of(stage, issuer, jti="newer")) == 200
                except openai.APIConnectionError:
                    return False

            await stage.until(serves, "new workers know the provider's keys without control")
            assert await status_of(stage, token_of(stage, issuer, new_key("second"))) == 503
    finally:
        await issuer.start(ca)


async def test_provider_that_was_never_reached_is_503(stage: Stage, issuer: Issuer, ca: ThrowawayCa) -> None:
    await issuer.stop()
    try:
        put = await stage.operator.call("PUT", PATH, issuer.provider(audience=stage.name, jwks_url=issuer.jwks_url))
        assert put["keys"] is None
        assert put["last_error"] == "jwks_url: cannot be fetched: the connection was refused"

        async def is_503() -> bool:
            return await status_of(stage, token_of(stage, issuer, jti=str(time.time_ns()))) == 503

        await stage.until(is_503, "the provider has no keys")
    finally:
        await issuer.start(ca)

    async def is_back() -> bool:
        return await status_of(stage, token_of(stage, issuer)) == 200

    await stage.until(is_back, "the keys are fetched")


async def test_deleted_provider_ends_calls(stage: Stage, issuer: Issuer) -> None:
    token = token_of(stage, issuer)
    assert await status_of(stage, token) == 200
    await stage.operator.call("DELETE", PATH)

    async def is_refused() -> bool:
        return await status_of(stage, token) == 403

    await stage.until(is_refused, "the provider is gone")
    assert await status_of(stage, token_of(stage, issuer, jti="new")) == 403


async def test_group_that_is_deleted_ends_calls(stage: Stage, issuer: Issuer) -> None:
    group_id = await stage.operator.group(f"{stage.name}-other", [{"slug": stage.slug}])
    token = issuer.token(aud=stage.name, org=f"{stage.name}-other")
    assert await status_of(stage, token) == 200
    await stage.operator.call("DELETE", f"/v1/gateway/groups/{group_id}")

    async def is_refused() -> bool:
        return await status_of(stage, token) == 403

    await stage.until(is_refused, "the group is gone")
