"""The identity provider of a workspace: put, read, delete, and how its keys are fetched and published.

See docs/reference/management-api.md#identity-provider.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import update

from control.api.protocol.dependencies import DEPENDENCIES
from control.edges.sql.identity.tables import identity_providers
from control.edges.sql.store import Store, current_revision
from control.resources.identity.refreshing import GAP_S, KeyRefresher
from policy.identity.providers import provider_id
from policy.snapshot import RowKind
from tests.control.plane import TOKEN, ControlPlane, Json, running_plane
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.issuer import AUDIENCE, Issuer, new_key

PATH = "/v1/gateway/identity_provider"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> ThrowawayCa:
    return ThrowawayCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture
async def issuer(ca: ThrowawayCa) -> AsyncIterator[Issuer]:
    issuer = Issuer()
    await issuer.start(ca)
    yield issuer
    await issuer.stop()


@pytest.fixture
async def plane(database_url: str, ca: ThrowawayCa, issuer: Issuer) -> AsyncIterator[ControlPlane]:
    async with running_plane(database_url, egress_allow=issuer.link, egress_ca_file=str(ca.ca_file)) as control_plane:
        yield control_plane


async def published(plane: ControlPlane, issuer: Issuer, audience: str = AUDIENCE) -> Json | None:
    """The provider as proxies have it."""
    query = {"since": "0", "epoch": "", "limit": "1000"}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with plane.client.get("/internal/v1/snapshot", params=query, headers=headers) as answer:
        rows = (await answer.json())["rows"]
    id = provider_id(issuer.url, audience)
    bodies = [body for kind, row_id, _, body in rows if (kind, row_id) == (RowKind.IDENTITY_PROVIDER, id)]
    return bodies[0] if bodies else None


async def refresh(plane: ControlPlane, issuer: Issuer, token: str = TOKEN) -> tuple[int, Any]:
    path = f"/internal/v1/identity_providers/{provider_id(issuer.url, AUDIENCE)}/refresh"
    async with plane.client.post(path, headers={"Authorization": f"Bearer {token}"}) as answer:
        return answer.status, await answer.json()


async def let_the_gap_pass(store: Store) -> None:
    """Have the last attempt begin earlier than it did."""

    async def work(tx: Any) -> None:
        moved = identity_providers.c.attempted_at_ms - int(GAP_S * 1000)
        await tx.conn.execute(update(identity_providers).values(attempted_at_ms=moved))

    await store.transact(work)


async def test_provider_is_stored_with_the_keys_that_discovery_leads_to(plane: ControlPlane, issuer: Issuer) -> None:
    (await plane.get(PATH)).refused(404)
    put = (await plane.put(PATH, issuer.provider())).ok()
    assert issuer.requests == ["/tenant/.well-known/openid-configuration", "/keys"]
    assert (put["keys"], put["last_error"], put["jwks_url"]) == ([{"kid": "first", "alg": "ES256"}], None, None)
    assert put["keys_fetched_at"] is not None
    assert (await plane.get(PATH)).ok() == put
    row = await published(plane, issuer)
    assert row is not None
    assert (row["workspace_id"], row["entity_claim"]) == (plane.workspace_id, "org")
    assert sorted(row["keys"][0]) == ["alg", "crv", "kid", "kty", "x", "y"]


async def test_jwks_url_spares_discovery(plane: ControlPlane, issuer: Issuer) -> None:
    put = (await plane.put(PATH, issuer.provider(issuer="urn:acme", jwks_url=issuer.jwks_url))).ok()
    assert issuer.requests == ["/keys"]
    assert (put["issuer"], put["last_error"]) == ("urn:acme", None)


async def test_deleted_provider_is_withdrawn(plane: ControlPlane, issuer: Issuer) -> None:
    (await plane.put(PATH, issuer.provider())).ok()
    deleted = (await plane.delete(PATH)).ok()
    assert (deleted["issuer"], deleted["audience"]) == (issuer.url, AUDIENCE)
    assert await published(plane, issuer) is None
    (await plane.delete(PATH)).refused(404)
    assert (await refresh(plane, issuer)) == (200, {"fetched": False})


async def test_another_audience_replaces_the_provider(plane: ControlPlane, issuer: Issuer) -> None:
    (await plane.put(PATH, issuer.provider())).ok()
    (await plane.put(PATH, issuer.provider(audience="other"))).ok()
    assert await published(plane, issuer) is None
    assert await published(plane, issuer, "other") is not None


async def test_issuer_and_audience_belong_to_one_workspace(plane: ControlPlane, issuer: Issuer) -> None:
    other = (await plane.another_workspace())["api_key"]
    (await plane.put(PATH, issuer.provider())).ok()
    refusal = (await plane.put(PATH, issuer.provider(), key=other)).refused(409)
    assert "audience" in refusal["error"]
    (await plane.get(PATH, key=other)).refused(404)
    (await plane.put(PATH, issuer.provider(audience="other"), key=other)).ok()
    (await plane.delete(PATH, key=other)).ok()
    assert (await plane.get(PATH)).ok()["audience"] == AUDIENCE


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"jwks_url": "http://login.example.com/keys"}, "jwks_url"),
        ({"jwks_url": "https://10.0.0.1/keys"}, "jwks_url"),
        ({"jwks_url": "https://169.254.169.254/latest"}, "jwks_url"),
        ({"jwks_url": "https://localhost/keys"}, "jwks_url"),
        ({"jwks_url": "https://keys.svc/keys"}, "jwks_url"),
        ({"jwks_url": "https://a:b@login.example.com/keys"}, "jwks_url"),
        ({"jwks_url": ""}, "jwks_url"),
        ({"issuer": "urn:acme"}, "issuer"),
        ({"issuer": "https://127.0.0.1"}, "issuer"),
        ({"issuer": "https://login.example.com/?tenant=1"}, "issuer"),
        ({"issuer": "i" * 2049}, "issuer"),
        ({"audience": ""}, "audience"),
        ({"audience": "a" * 256}, "audience"),
        ({"entity_claim": ""}, "entity_claim"),
        ({"secret": "x"}, "secret"),
    ],
)
async def test_body_is_refused(sqlite_plane: ControlPlane, changes: Json, field: str) -> None:
    refusal = await sqlite_plane.put(PATH, Issuer(port=1).provider(**changes))
    refusal.refused(400, field=field)
    (await sqlite_plane.get(PATH)).refused(404)


HUGE = web.Response(body=b'{"keys": [' + b" " * 300_000 + b"]}")
KEYS = "/keys"
DISCOVERY = "/tenant/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("path", "answer", "error"),
    [
        (KEYS, web.Response(status=500), "answered 500"),
        (KEYS, web.Response(status=302, headers={"Location": "https://evil.example/keys"}), "answered 302"),
        (KEYS, HUGE, "answered more than 262144 bytes"),
        (KEYS, web.Response(text="<html>"), "is no JSON object with a list of keys"),
        (KEYS, web.json_response([1]), "is no JSON object with a list of keys"),
        (KEYS, web.json_response({"keys": []}), "has no key that can be used"),
        (DISCOVERY, web.Response(status=404), "answered 404"),
        (DISCOVERY, web.json_response({"issuer": "https://evil.example", "jwks_uri": "x"}), "that of another issuer"),
        (DISCOVERY, web.json_response({"issuer": "https://login.example.com/tenant"}), "has no jwks_uri"),
        (
            DISCOVERY,
            web.json_response({"issuer": "https://login.example.com/tenant", "jwks_uri": "https://10.0.0.1/keys"}),
            "the URL may not be called",
        ),
        (
            DISCOVERY,
            web.json_response({"issuer": "https://login.example.com/tenant", "jwks_uri": "http://x.example/"}),
            "the URL may not be called",
        ),
        (DISCOVERY, web.json_response([]), "is no JSON object"),
    ],
)
async def test_provider_whose_keys_cannot_be_fetched_is_stored_with_the_reason(
    sqlite_url: str, ca: ThrowawayCa, issuer: Issuer, path: str, answer: web.Response, error: str
) -> None:
    issuer.answers[path] = answer
    async with running_plane(sqlite_url, egress_allow=issuer.link, egress_ca_file=str(ca.ca_file)) as plane:
        put = (await plane.put(PATH, issuer.provider())).ok()
        assert (put["keys"], put["keys_fetched_at"]) == (None, None)
        assert error in put["last_error"]
        assert put["last_error"].startswith("issuer:")
        row = await published(plane, issuer)
        assert row is not None
        assert row["keys"] is None
        issuer.answers.clear()
        await let_the_gap_pass(plane.store)
        assert await refresh(plane, issuer) == (200, {"fetched": True})
        assert (await plane.get(PATH)).ok()["last_error"] is None


async def test_failed_refresh_keeps_the_keys(plane: ControlPlane, issuer: Issuer) -> None:
    (await plane.put(PATH, issuer.provider())).ok()
    issuer.answers[KEYS] = web.Response(status=503)
    await let_the_gap_pass(plane.store)
    assert await refresh(plane, issuer) == (200, {"fetched": False})
    got = (await plane.get(PATH)).ok()
    assert got["keys"] == [{"kid": "first", "alg": "ES256"}]
    assert got["last_error"] == "issuer: the jwks_uri of its discovery document cannot be fetched: answered 503"
    put = (await plane.put(PATH, issuer.provider(entity_claim="team"))).ok()  # from the same place
    assert put["keys"] == got["keys"]
    put = (await plane.put(PATH, issuer.provider(jwks_url=issuer.jwks_url))).ok()
    assert put["keys"] is None


async def test_questions_share_an_attempt_and_keep_a_distance(plane: ControlPlane, issuer: Issuer) -> None:
    (await plane.put(PATH, issuer.provider())).ok()
    issuer.requests.clear()
    assert await refresh(plane, issuer) == (200, {"fetched": True})
    assert issuer.requests == []  # it was fetched just before
    await let_the_gap_pass(plane.store)
    answers = await asyncio.gather(*(refresh(plane, issuer) for _ in range(20)))
    assert answers == [(200, {"fetched": True})] * 20
    assert issuer.requests == [DISCOVERY, KEYS]


async def test_attempt_of_another_process_is_waited_for(plane: ControlPlane, issuer: Issuer) -> None:
    (await plane.put(PATH, issuer.provider())).ok()
    await let_the_gap_pass(plane.store)
    documents = plane.client.app[DEPENDENCIES].key_refresher.documents
    others = [KeyRefresher(plane.store, documents) for _ in range(3)]
    issuer.requests.clear()
    issuer.keys = [new_key("second")]
    id = provider_id(issuer.url, AUDIENCE)
    assert await asyncio.gather(*(one.refresh(id) for one in others)) == [True] * 3
    assert issuer.requests == [DISCOVERY, KEYS]
    row = await published(plane, issuer)
    assert row is not None
    assert [key["kid"] for key in row["keys"]] == ["second"]


async def test_unchanged_keys_are_not_published_again(plane: ControlPlane, issuer: Issuer) -> None:
    issuer.keys = [new_key("a"), new_key("b")]
    (await plane.put(PATH, issuer.provider())).ok()
    revisions = []

    async def revision() -> int:
        async with plane.store.read() as conn:
            return await current_revision(conn)

    for _ in range(2):
        revisions.append(await revision())
        issuer.keys = list(reversed(issuer.keys))
        await let_the_gap_pass(plane.store)
        assert (await refresh(plane, issuer))[1] == {"fetched": True}
    assert len(set(revisions)) == 1
    issuer.keys = [new_key("c")]
    await let_the_gap_pass(plane.store)
    await refresh(plane, issuer)
    assert await revision() > revisions[0]


async def test_due_providers_are_refreshed_without_a_question(plane: ControlPlane, issuer: Issuer) -> None:
    (await plane.put(PATH, issuer.provider())).ok()
    issuer.keys = [new_key("second")]
    refresher = plane.client.app[DEPENDENCIES].key_refresher
    await refresher.refresh_due()
    assert (await plane.get(PATH)).ok()["keys"][0]["kid"] == "first"
    for _ in range(61):  # more than five minutes
        await let_the_gap_pass(plane.store)
    await refresher.refresh_due()
    assert (await plane.get(PATH)).ok()["keys"][0]["kid"] == "second"


async def test_question_needs_the_internal_token(sqlite_plane: ControlPlane) -> None:
    assert (await refresh(sqlite_plane, Issuer(port=1), sqlite_plane.key))[0] == 401


async def test_tokens_are_no_keys_of_the_management_api(plane: ControlPlane, issuer: Issuer) -> None:
    (await plane.put(PATH, issuer.provider())).ok()
    await plane.group("acme")
    for path in (PATH, "/v1/gateway/groups", "/v1/secrets"):
        (await plane.get(path, key=issuer.token())).refused(403)
