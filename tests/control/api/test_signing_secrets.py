"""The secret that signs results of asynchronous requests, over HTTP, at rest and as published, on both databases."""

import asyncio
import base64
from dataclasses import replace
from typing import Any

import orjson
import pytest
from sqlalchemy import select, update
from standardwebhooks import Webhook

from control.edges.sql.events.clock import database_ms
from control.edges.sql.store import Store
from control.edges.sql.tables import published, workspaces
from control.resources.sealing.resealing import reencrypt_all
from control.resources.workspaces import set_workspace
from policy.sealing import SealedWithUnknownKeyError, unseal
from policy.snapshot import SigningSecrets, WorkspaceRow
from tests.control.plane import SECRET_KEYS, ControlPlane, running_plane

PATH = "/v1/async/webhook_secret"
DAY_MS = 86_400_000


async def secrets(plane: ControlPlane, method: str = "GET", **more: Any) -> list[str]:
    answer = (await plane.call(method, PATH, **more)).ok()
    assert answer.keys() == {"secrets"}
    return answer["secrets"]  # type: ignore[no-any-return]  # JSON


async def published_row(plane: ControlPlane) -> WorkspaceRow:
    """The workspace as a proxy reads it."""
    async with plane.store.read() as conn:
        query = select(published.c.body).where(published.c.kind == "workspace", published.c.id == plane.workspace_id)
        return WorkspaceRow.from_wire(plane.workspace_id, orjson.loads((await conn.execute(query)).scalar_one()))


async def signing(plane: ControlPlane) -> SigningSecrets:
    signing_secrets = (await published_row(plane)).signing_secrets
    assert signing_secrets is not None
    return signing_secrets


async def end_overlap(store: Store) -> None:
    async with store.write() as tx:
        await tx.conn.execute(update(workspaces).values(previous_signing_until_ms=await database_ms(tx.conn) - 1))


async def test_the_first_secret_is_made_once_and_published_sealed(plane: ControlPlane) -> None:
    assert (await published_row(plane)).signing_secrets is None
    (secret,) = await secrets(plane)
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    assert Webhook(secret)
    assert await secrets(plane) == [secret]
    row = await signing(plane)
    assert unseal(SECRET_KEYS, plane.workspace_id, row.current) == secret
    assert row.previous is None
    with pytest.raises(SealedWithUnknownKeyError):
        unseal(SECRET_KEYS, "ws_other", row.current)


async def test_concurrent_requests_for_the_first_secret_get_the_same_one(plane: ControlPlane) -> None:
    url = plane.store.engine.url.render_as_string(hide_password=False)
    async with running_plane(url, "beside") as second:
        beside = replace(second, key=plane.key)
        answers = await asyncio.gather(*(secrets(one) for _ in range(8) for one in (plane, beside)))
    assert len({tuple(one) for one in answers}) == 1
    assert (await published_row(plane)).signing_secrets is not None


async def test_after_a_rotation_both_secrets_sign_for_a_day(plane: ControlPlane) -> None:
    (first,) = await secrets(plane)
    async with plane.store.read() as conn:
        before_ms = await database_ms(conn)
    second, previous = await secrets(plane, "POST")
    assert previous == first != second
    assert await secrets(plane) == [second, first]
    row = await signing(plane)
    assert row.previous is not None
    assert [unseal(SECRET_KEYS, plane.workspace_id, one) for one in (row.current, row.previous)] == [second, first]
    assert DAY_MS <= row.previous_until_ms - before_ms < DAY_MS + 60_000
    await end_overlap(plane.store)
    assert await secrets(plane) == [second]


async def test_a_second_rotation_within_the_day_drops_the_oldest_secret(sqlite_plane: ControlPlane) -> None:
    (first,) = await secrets(sqlite_plane, "POST")
    second, _ = await secrets(sqlite_plane, "POST")
    third, previous = await secrets(sqlite_plane, "POST")
    assert previous == second
    assert await secrets(sqlite_plane) == [third, second]
    assert first not in (third, second)


async def test_a_secret_is_stored_and_published_only_sealed(sqlite_plane: ControlPlane) -> None:
    values = await secrets(sqlite_plane)
    values += await secrets(sqlite_plane, "POST")
    async with sqlite_plane.store.read() as conn:
        rows = str([(await conn.execute(select(table))).all() for table in (workspaces, published)])
    assert not any(secret.removeprefix("whsec_") in rows for secret in values)


async def test_other_changes_of_the_workspace_keep_the_secret(plane: ControlPlane) -> None:
    await secrets(plane, "POST")
    await secrets(plane, "POST")
    before = await signing(plane)
    await set_workspace(plane.store, "workspace acme", billing="suspended")
    row = await published_row(plane)
    assert (row.billing, row.signing_secrets) == ("suspended", before)


async def test_each_workspace_has_its_own_secret(sqlite_plane: ControlPlane) -> None:
    other = await sqlite_plane.another_workspace(onboarded=False)
    assert await secrets(sqlite_plane, key=other["api_key"]) != await secrets(sqlite_plane)


async def test_the_secret_needs_management_scope(sqlite_plane: ControlPlane) -> None:
    key = (await sqlite_plane.post("/v1/api_keys", {"type": "WORKSPACE_INVOKE"})).ok()
    for method in ("GET", "POST"):
        (await sqlite_plane.call(method, PATH, key=key["api_key"])).refused(403, "MISSING_SCOPE")
    assert (await published_row(sqlite_plane)).signing_secrets is None


async def test_signing_secrets_are_reencrypted_and_expired_ones_dropped(plane: ControlPlane) -> None:
    (first,) = await secrets(plane, "POST")
    second, _ = await secrets(plane, "POST")
    fresh = b"n" * 32
    await reencrypt_all(plane.store, (fresh, *SECRET_KEYS))
    row = await signing(plane)
    assert row.previous is not None
    assert [unseal((fresh,), plane.workspace_id, one) for one in (row.current, row.previous)] == [second, first]
    await end_overlap(plane.store)
    await reencrypt_all(plane.store, (fresh,))
    row = await signing(plane)
    assert (unseal((fresh,), plane.workspace_id, row.current), row.previous) == (second, None)


async def test_a_secret_of_a_lost_key_is_503_until_it_is_rotated(sqlite_plane: ControlPlane) -> None:
    await secrets(sqlite_plane)
    await reencrypt_all(sqlite_plane.store, (b"l" * 32, *SECRET_KEYS))
    refused = (await sqlite_plane.get(PATH)).refused(503, "SECRET_UNREADABLE")
    assert "TOLLGATE_SECRET_KEY" in refused["error"]
    (secret,) = await secrets(sqlite_plane, "POST")
    assert await secrets(sqlite_plane) == [secret]
