"""An operator's change applies at once, not at the next refresh; a refusal reveals nothing about other tenants."""

import json
import time

import anthropic
import openai
import pytest

from tests.journeys.conftest import Stage
from tests.ports import own_port
from tests.upstream import ScriptedUpstream, chat

REFRESH_INTERVAL_S = 60.0
"""The default of TOLLGATE_REFRESH_INTERVAL_S."""
live = pytest.mark.parametrize("within_s", [REFRESH_INTERVAL_S / 4, pytest.param(1.0, marks=pytest.mark.soak)])
"""A second on a machine that does nothing else."""


@live
async def test_changed_target_of_a_slug_applies_at_once(stage: Stage, within_s: float) -> None:
    key = await stage.key_without_limits()
    endpoints = (await stage.operator.call("GET", "/v1/gateway/endpoints", limit=1000))["items"]
    (endpoint,) = [entry for entry in endpoints if entry["slug"] == stage.slug]
    assert (await stage.ask(key)).choices[0].message.content == "This is upstream."
    async with ScriptedUpstream(default=chat(("This is elsewhere.",)), port=own_port()) as other:
        model = await stage.operator.model("other", other.url)
        targets = {"targets": [{"provider": "PLATFORM", "model_id": model}]}
        await stage.operator.call("PATCH", f"/v1/gateway/endpoints/{endpoint['id']}", targets)
        changed = time.monotonic()

        async def answers() -> bool:
            return bool((await stage.ask(key)).choices[0].message.content == "This is elsewhere.")

        await stage.until(answers, "the other model answers")
        assert time.monotonic() - changed < within_s


@live
async def test_revoked_key_is_refused_at_once(stage: Stage, within_s: float) -> None:
    key = await stage.key_without_limits()
    await stage.ask(key)
    await revoke(stage, key, key.split(".")[0], within_s)


async def revoke(stage: Stage, key: str, prefix: str, within_s: float) -> None:
    groups = (await stage.operator.call("GET", "/v1/gateway/groups", external_entity_id=stage.name))["items"]
    await stage.operator.call("DELETE", f"/v1/gateway/groups/{groups[0]['id']}/api_keys/{prefix}")
    revoked = time.monotonic()

    async def refused() -> bool:
        try:
            await stage.ask(key)
        except openai.PermissionDeniedError as error:
            return bool(error.response.json() == {"error": "Authentication failed"})
        return False

    await stage.until(refused, "the key is refused")
    assert time.monotonic() - revoked < within_s


@live
async def test_key_of_ones_own_calls_at_once_until_it_is_revoked(stage: Stage, within_s: float) -> None:
    await stage.key_without_limits()
    groups = (await stage.operator.call("GET", "/v1/gateway/groups", external_entity_id=stage.name))["items"]
    key = f"sk-of-my-own/{stage.name}~0123456789-0123456789"
    place = f"/v1/gateway/groups/{groups[0]['id']}/api_keys/register"
    with pytest.raises(openai.PermissionDeniedError):
        await stage.ask(key)
    prefix = (await stage.operator.call("POST", place, {"key": key}))["prefix"]
    assert (await stage.ask(key)).model == stage.slug
    body = json.dumps({"model": stage.slug, "messages": [{"role": "user", "content": "Hi"}]}).encode()
    for headers in ({"x-api-key": key}, {"Authorization": f"Api-Key {key}"}):
        assert (await stage.post(headers, body))[0] == 200
    async with anthropic.AsyncAnthropic(base_url=stage.product.proxy, api_key=key, max_retries=0) as client:
        answer = await client.messages.create(
            model=stage.slug, max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
        )
    assert answer.model == stage.slug
    await revoke(stage, key, prefix, within_s)
    assert {event["apiKeyPrefix"] for event in await stage.events_of(stage.name, 4)} == {prefix}
    assert key not in stage.product.log.read_text()


async def test_new_key_is_accepted_at_once(stage: Stage) -> None:
    """The proxy need not wait for a hint or a refresh: it asks control for a key that its replica does not have."""
    key = await stage.key_without_limits()
    assert (await stage.ask(key)).model == stage.slug


async def test_deleting_a_group_revokes_its_descendants_keys(stage: Stage) -> None:
    await stage.key_without_limits()
    groups = (await stage.operator.call("GET", "/v1/gateway/groups", external_entity_id=stage.name))["items"]
    child = await stage.operator.group(f"{stage.name}-child", [{"slug": stage.slug}], parent_group_id=groups[0]["id"])
    key = await stage.operator.key(child)
    await stage.ask(key)
    await stage.operator.call("DELETE", f"/v1/gateway/groups/{groups[0]['id']}")

    async def refused() -> bool:
        try:
            await stage.ask(key)
        except openai.PermissionDeniedError:
            return True
        return False

    await stage.until(refused, "the child's key is refused")


async def test_suspended_workspace_gets_402(stage: Stage) -> None:
    key = await stage.key_without_limits()
    stage.product.command("workspace", "set", "acme", "--billing", "suspended")
    try:

        async def refused() -> bool:
            try:
                await stage.ask(key)
            except openai.APIStatusError as error:
                return error.status_code == 402
            return False

        await stage.until(refused, "402")
    finally:
        stage.product.command("workspace", "set", "acme", "--billing", "active")

    async def served() -> bool:
        try:
            await stage.ask(key)
        except openai.APIStatusError:
            return False
        return True

    await stage.until(served, "served again")


async def test_unknown_and_forbidden_slugs_get_the_same_404(stage: Stage) -> None:
    key = await stage.key_without_limits()
    hidden = f"{stage.slug}-hidden"
    await stage.operator.endpoint(hidden, await stage.operator.model("hidden", stage.upstream.url))
    errors = []
    for slug in (hidden, f"{stage.slug}-unknown"):
        with pytest.raises(openai.NotFoundError) as refusal:
            await stage.ask(key, model=slug)
        errors.append(refusal.value.response.json()["error"].replace(slug, "…"))
    assert errors[0] == errors[1]
    assert not stage.upstream.received


@pytest.mark.parametrize(
    ("headers", "status", "body"),
    [
        ({}, 401, {"error": "Unauthorized"}),
        ({"Authorization": "Basic YTpi"}, 401, {"error": "Unauthorized"}),
        ({"Authorization": "Bearer nonsense"}, 403, {"error": "Authentication failed"}),
        ({"Authorization": "Api-Key tg_aaaaaaaaaaaa." + "b" * 32}, 403, {"error": "Authentication failed"}),
        ({"x-api-key": "tg_aaaaaaaaaaaa." + "b" * 32}, 403, {"error": "Authentication failed"}),
    ],
)
async def test_missing_credential_is_401_and_unknown_key_is_403(
    stage: Stage, headers: dict[str, str], status: int, body: dict[str, str]
) -> None:
    assert await stage.post(headers, b'{"model": "acme/any", "messages": []}') == (status, body)


async def test_each_kind_of_key_is_refused_on_the_other_plane(stage: Stage) -> None:
    """A workspace key calls no slug, and a federated key manages nothing."""
    key = await stage.key_without_limits()
    with pytest.raises(openai.PermissionDeniedError):
        await stage.ask(stage.operator.api_key)
    async with stage.session.get(
        stage.product.control + "/v1/gateway/events", headers={"Authorization": f"Bearer {key}"}
    ) as answer:
        assert answer.status == 403


async def test_invalid_body_is_400_and_unknown_path_is_404(stage: Stage) -> None:
    key = await stage.key_without_limits()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    for body in (b"", b"{", b"[]", b"null", b"{}", b'{"model": 5}', b'{"model": null}', b"\xff\xfe", b'{"model": "a"'):
        status, answer = await stage.post(headers, body)
        assert status == 400, body
        assert set(answer) == {"error", "error_code"}, body
    for path in ("/v1/nothing", "/", "/v1/chat/completions/more", "/v1//chat/completions", "/%00"):
        status, answer = await stage.post(headers, b'{"model": "a"}', path)
        assert status == 404, path
        assert "error" in answer, path
    assert not stage.upstream.received
