"""Keys over HTTP, on both databases: minted and shown once, addressed by prefix, revoked.

See docs/reference/management-api.md#api-keys.
"""

import asyncio

import pytest
from sqlalchemy import select, update

from control.api.protocol.dependencies import DEPENDENCIES
from control.edges.sql.tables import api_keys, published
from policy.credentials import digest_of, prefix_of
from tests.control.plane import ControlPlane

OWN = "/v1/api_keys"


async def keys_path_of_new_group(plane: ControlPlane) -> str:
    return f"/v1/gateway/groups/{(await plane.group('g'))['id']}/api_keys"


async def test_a_federated_key_is_minted_listed_and_revoked(plane: ControlPlane) -> None:
    place = await keys_path_of_new_group(plane)
    key = (await plane.post(place, {"name": "mine"})).ok()
    assert key.keys() == {"api_key", "prefix", "name", "created_at"}
    assert prefix_of(key["api_key"]) == key["prefix"]
    item = {"prefix": key["prefix"], "name": "mine", "created_at": key["created_at"], "last_used_at": None}
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
