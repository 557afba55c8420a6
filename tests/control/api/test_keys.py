"""Keys over HTTP, on both databases: minted and shown once, addressed by prefix, revoked.

See docs/reference/management-api.md#api-keys.
"""

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import select, update

from control.api.protocol.dependencies import DEPENDENCIES
from control.edges.sql.tables import api_keys, audit_events, published
from policy.credentials import digest_of, prefix_of, registered_prefix
from policy.snapshot import KeyRow
from tests.control.plane import Answer, ControlPlane

OWN = "/v1/api_keys"
NOTHING_SET: dict[str, Any] = {
    **{"state": "ACTIVE", "expires_at": None, "disabled": False, "allowed_ips": None, "slugs": None},
    **{"rate_limits": [], "spend_limits": [], "replaced_by": None},
}
"""The settings of a key on which nothing is set."""


async def keys_path_of_new_group(plane: ControlPlane) -> str:
    return f"/v1/gateway/groups/{(await plane.group('g'))['id']}/api_keys"


async def test_a_federated_key_is_minted_listed_and_revoked(plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(plane)
    key = (await plane.post(place, {"name": "mine"})).ok()
    assert key.keys() == {"api_key", "prefix", "name", "created_at", "last_used_at", *NOTHING_SET}
    assert prefix_of(key["api_key"]) == key["prefix"]
    names = {"prefix": key["prefix"], "name": "mine", "created_at": key["created_at"], "last_used_at": None}
    item = {**names, **NOTHING_SET}
    assert key == {**item, "api_key": key["api_key"]}
    assert (await plane.get(place)).ok()["items"] == [item]
    assert (await plane.get(f"{place}/{key['prefix']}")).ok() == item
    deletion = (await plane.delete(f"{place}/{key['prefix']}")).ok()
    assert deletion == {"prefix": key["prefix"], "group_id": place.split("/")[4], "deleted": True}
    (await plane.get(f"{place}/{key['prefix']}")).refused(404)
    (await plane.delete(f"{place}/{key['prefix']}")).refused(404)
    assert (await plane.get(place)).ok()["items"] == []


async def test_only_the_digest_is_stored_and_published(plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(plane)
    key = (await plane.post(place, {})).ok()["api_key"]
    async with plane.store.read() as conn:
        rows = [*(await conn.execute(select(api_keys))).all(), *(await conn.execute(select(published))).all()]
    assert key.partition(".")[2] not in str(rows)
    assert digest_of(key) in str(rows)


async def test_last_used_at_is_shown(plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(plane)
    prefix = (await plane.post(place, {})).ok()["prefix"]
    async with plane.store.write() as tx:
        await tx.conn.execute(update(api_keys).where(api_keys.c.prefix == prefix).values(last_used_at_ms=1))
    assert (await plane.get(f"{place}/{prefix}")).ok()["last_used_at"] == "1970-01-01T00:00:00.001Z"


async def test_a_group_lists_only_its_own_keys(plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(plane)
    prefix = (await plane.post(place, {})).ok()["prefix"]
    elsewhere = f"/v1/gateway/groups/{(await plane.group('h'))['id']}/api_keys/{prefix}"
    (await plane.get(elsewhere)).refused(404)
    (await plane.delete(elsewhere)).refused(404)
    (await plane.get(f"{OWN}/{prefix}")).refused(404)
    (await plane.delete(f"{OWN}/{prefix}")).refused(404)


@pytest.mark.parametrize("kind", ["WORKSPACE_MANAGE_ALL", "WORKSPACE_INVOKE", "WORKSPACE_EXPORT_METRICS"])
async def test_a_workspace_key_has_the_rights_of_its_type(plane: ControlPlane, kind: str) -> None:
    key = (await plane.post(OWN, {"type": kind, "name": "n"})).ok()
    assert key["type"] == kind
    answer = await plane.get(OWN, key=key["api_key"])
    if kind == "WORKSPACE_MANAGE_ALL":
        assert {item["prefix"]: item["type"] for item in answer.ok()["items"]}[key["prefix"]] == kind
    else:
        answer.refused(403, "MISSING_SCOPE")
    assert (await plane.get(f"{OWN}/{key['prefix']}")).ok()["type"] == kind
    assert (await plane.delete(f"{OWN}/{key['prefix']}")).ok() == {"prefix": key["prefix"], "deleted": True}
    (await plane.get(OWN, key=key["api_key"])).refused(403, "AUTHENTICATION_FAILED")


async def test_a_workspace_key_of_federated_type_is_refused(sqlite_plane: ControlPlane) -> None:
    (await sqlite_plane.post(OWN, {"type": "FEDERATED"})).refused(400)
    (await sqlite_plane.post(OWN, {})).refused(400)


async def test_keys_page_in_order(plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(plane)
    await asyncio.gather(*(plane.post(place, {}) for _ in range(7)))
    entries = []
    url = f"{place}?limit=3"
    for _ in range(3):
        page = (await plane.get(url)).ok()
        entries += [(item["created_at"], item["prefix"]) for item in page["items"]]
        url = f"{place}?cursor={page['pagination']['cursor']}"
    assert len(set(entries)) == 7
    assert [time for time, _ in entries] == sorted(time for time, _ in entries)


async def test_a_cursor_belongs_to_its_list_and_workspace(plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(plane)
    for _ in range(2):
        (await plane.post(place, {})).ok()
    cursor = (await plane.get(f"{place}?limit=1")).ok()["pagination"]["cursor"]
    (await plane.get(f"{place}?cursor={cursor}")).ok()
    changed = ("A" if cursor[0] != "A" else "B") + cursor[1:]
    for wrong in (f"{place}?cursor={changed}", f"{place}?cursor=", f"{place}?cursor=%00", f"{OWN}?cursor={cursor}"):
        (await plane.get(wrong)).refused(400)
    other = (await plane.another_workspace())["api_key"]
    (await plane.get(f"{OWN}?cursor={cursor}", key=other)).refused(400)


async def test_a_workspace_key_shows_its_last_management_request(plane: ControlPlane) -> None:
    busy_key, idle_key = [(await plane.post(OWN, {"type": "WORKSPACE_MANAGE_ALL"})).ok() for _ in range(2)]
    (await plane.get(OWN, key=busy_key["api_key"])).ok()
    app = plane.client.app
    assert app is not None
    await app[DEPENDENCIES].last_used.write()
    assert (await plane.get(f"{OWN}/{busy_key['prefix']}")).ok()["last_used_at"] >= busy_key["created_at"]
    assert (await plane.get(f"{OWN}/{idle_key['prefix']}")).ok()["last_used_at"] is None
    await app[DEPENDENCIES].last_used.write()


# Keys of one's own.

OWN_KEY = "sk-of-my-own/0123456789~0123456789"


async def register(plane: ControlPlane, place: str, key: str = OWN_KEY, **more: Any) -> Answer:
    return await plane.post(f"{place}/register", {"key": key, **more})


async def test_a_key_of_ones_own_is_registered_listed_and_revoked(plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(plane)
    prefix = registered_prefix(OWN_KEY)
    assert (await register(plane, place, name="mine")).ok() == {"ok": True, "prefix": prefix, "name": "mine"}
    [item] = (await plane.get(place)).ok()["items"]
    names = {"prefix": prefix, "name": "mine", "created_at": item["created_at"], "last_used_at": None}
    assert item == {**names, **NOTHING_SET}
    assert (await plane.get(f"{place}/{prefix}")).ok() == item
    assert (await plane.delete(f"{place}/{prefix}")).ok()["prefix"] == prefix
    assert (await plane.get(place)).ok()["items"] == []
    assert (await register(plane, place)).ok() == {"ok": True, "prefix": prefix, "name": None}  # again, after that


async def test_a_key_of_ones_own_is_stored_and_published_as_a_digest(
    plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    place = await keys_path_of_new_group(plane)
    (await register(plane, place)).ok()
    (await register(plane, place)).refused(409)
    async with plane.store.read() as conn:
        tables = [(await conn.execute(select(table))).all() for table in (api_keys, published, audit_events)]
        row = (await conn.execute(select(published).where(published.c.id == digest_of(OWN_KEY)))).one()
    assert OWN_KEY not in str(tables)
    assert OWN_KEY not in caplog.text
    key = KeyRow.from_wire(row.id, json.loads(row.body))
    assert (key.prefix, key.kind, key.group_id) == (registered_prefix(OWN_KEY), "FEDERATED", place.split("/")[4])


async def test_a_key_that_anybody_has_registered_is_refused_in_the_same_words(plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(plane)
    elsewhere = f"/v1/gateway/groups/{(await plane.group('h'))['id']}/api_keys"
    (await register(plane, place)).ok()
    other = (await plane.another_workspace())["api_key"]
    group = {"metadata": {"external_entity_id": "g"}, "models": [{"slug": "other/chat"}]}
    foreign = (await plane.post("/v1/gateway/groups", group, key=other)).ok()["id"]
    body = {"key": OWN_KEY}
    answers = [
        await register(plane, place),
        await register(plane, elsewhere),
        await plane.post(f"/v1/gateway/groups/{foreign}/api_keys/register", body, key=other),
    ]
    refusals = [answer.refused(409, "CONFLICT") for answer in answers]
    assert len({str(refusal) for refusal in refusals}) == 1
    assert OWN_KEY not in str(refusals)
    (await plane.post(f"{place}/register", body, key=other)).refused(404)
    assert (await plane.get(elsewhere)).ok()["items"] == []


@pytest.mark.parametrize(
    "key",
    [
        "x" * 23,
        "x" * 257,
        "with spaces 0123456789 0123456789",
        "tg_abcdefghijkl.0123456789abcdefghijklmnopqrst",
        "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "ünsichtbar-0123456789-0123456789",
    ],
)
async def test_a_key_of_another_form_is_refused_and_not_quoted(sqlite_plane: ControlPlane, key: str) -> None:
    place = await keys_path_of_new_group(sqlite_plane)
    answer = await register(sqlite_plane, place, key)
    assert key not in str(answer.refused(400, field="key"))
    (await sqlite_plane.post(f"{place}/register", {"key": [key]})).refused(400, field="key")
    (await sqlite_plane.post(f"{place}/register", {})).refused(400, field="key")
    assert (await sqlite_plane.get(place)).ok()["items"] == []


async def test_a_name_that_shows_the_key_is_refused(sqlite_plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(sqlite_plane)
    answer = await register(sqlite_plane, place, name=f"my {OWN_KEY}")
    assert OWN_KEY not in str(answer.refused(400, field="name"))


async def test_a_key_of_ones_own_manages_nothing(sqlite_plane: ControlPlane) -> None:
    (await register(sqlite_plane, await keys_path_of_new_group(sqlite_plane))).ok()
    (await sqlite_plane.get(OWN, key=OWN_KEY)).refused(403, "FEDERATED_KEY")


async def test_of_registrations_at_the_same_time_one_is_made(plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(plane)
    answers = await asyncio.gather(*(register(plane, place) for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409, 409]
