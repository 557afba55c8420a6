"""Lists whose items have the original's name, too: both names, whole without `limit`, in few queries.

See docs/reference/management-api.md#paging.
"""

from typing import Any

import pytest
from sqlalchemy import Table, insert, select

from control.api.protocol import lists
from control.api.protocol.schemas import MAX_PAGE
from control.edges.sql import secret_rows
from control.edges.sql.tables import api_keys, deployments, environments, models, secrets
from tests.control.plane import ControlPlane, Json

COUNT = 120
"""More than a page of other lists."""


async def copied(plane: ControlPlane, table: Table, count: int, **columns: str) -> None:
    """Copy the last row until there are `count` rows. `columns`: the texts of those that differ, `{}` for a number."""
    async with plane.store.write() as tx:
        rows = [dict(row) for row in (await tx.conn.execute(select(table))).mappings()]
        more = [{name: text.format(f"{n:05}") for name, text in columns.items()} for n in range(count - len(rows))]
        await tx.conn.execute(insert(table), [{**rows[-1], **values} for values in more])


async def secrets_path(plane: ControlPlane) -> str:
    (await plane.post("/v1/secrets", {"name": "vendor", "value": "x"})).ok()
    await copied(plane, secrets, COUNT, id="sec_{}", name="vendor-{}")
    return "/v1/secrets"


async def keys_path(plane: ControlPlane) -> str:
    await copied(plane, api_keys, COUNT, prefix="tg_{}", digest="{}")
    return "/v1/api_keys"


async def models_path(plane: ControlPlane) -> str:
    (await plane.post("/v1/models", {"name": "mine"})).ok()
    await copied(plane, models, COUNT, id="mdl_{}")
    return "/v1/models"


async def deployments_path(plane: ControlPlane) -> str:
    model = (await plane.post("/v1/models", {"name": "mine"})).ok()["id"]
    (await plane.post(f"/v1/models/{model}/deployments", {"name": "first"})).ok()
    await copied(plane, deployments, COUNT, id="dep_{}", name="d{}")
    return f"/v1/models/{model}/deployments"


async def environments_path(plane: ControlPlane) -> str:
    model = (await plane.post("/v1/models", {"name": "mine"})).ok()["id"]
    deployment = (await plane.post(f"/v1/models/{model}/deployments", {"name": "first"})).ok()["id"]
    (await plane.put(f"/v1/models/{model}/environments/production", {"deployment_id": deployment})).ok()
    await copied(plane, environments, COUNT, name="e{}")
    return f"/v1/models/{model}/environments"


def items_of(page: Json, name: str) -> list[Json]:
    assert page.keys() == {"items", name, "pagination"}
    assert page[name] == page["items"]
    items: list[Json] = page[name]
    return items


@pytest.mark.parametrize("make", [secrets_path, keys_path, models_path, deployments_path, environments_path])
async def test_a_list_of_the_original_is_whole_without_a_limit_and_paged_with_one(
    sqlite_plane: ControlPlane, make: Any
) -> None:
    plane = sqlite_plane
    path = await make(plane)
    name = make.__name__.removesuffix("_path")
    page = (await plane.get(path)).ok()
    whole = items_of(page, name)
    assert (len(whole), page["pagination"]) == (COUNT, {"has_more": False, "cursor": None})
    page = (await plane.get(f"{path}?limit=100")).ok()
    first = items_of(page, name)
    assert (len(first), page["pagination"]["has_more"]) == (100, True)
    page = (await plane.get(f"{path}?cursor={page['pagination']['cursor']}")).ok()
    assert first + items_of(page, name) == whole
    assert not page["pagination"]["has_more"]


async def test_a_list_without_another_name_stays_at_its_page(sqlite_plane: ControlPlane) -> None:
    path = f"/v1/gateway/groups/{(await sqlite_plane.group('g'))['id']}/api_keys"
    (await sqlite_plane.post(path, {})).ok()
    await copied(sqlite_plane, api_keys, COUNT, prefix="tg_{}", digest="{}")
    page = (await sqlite_plane.get(path)).ok()
    assert page.keys() == {"items", "pagination"}
    assert (len(page["items"]), page["pagination"]["has_more"]) == (100, True)


async def test_a_thousand_items_are_one_query_without_ciphertexts(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()

    async def list_secrets(*arguments: Any) -> Any:
        records = await original(*arguments)
        read.append(len(records))
        assert {record.ciphertext for record in records} == {""}
        return records

    original = secret_rows.list_secrets
    monkeypatch.setattr(secret_rows, "list_secrets", list_secrets)
    (await sqlite_plane.post("/v1/secrets", {"name": "vendor", "value": "x"})).ok()
    await copied(sqlite_plane, secrets, MAX_PAGE + 5, id="sec_{}", name="vendor-{}")
    page = (await sqlite_plane.get("/v1/secrets")).ok()
    assert (len(items_of(page, "secrets")), read) == (MAX_PAGE, [MAX_PAGE + 1])
    page = (await sqlite_plane.get(f"/v1/secrets?cursor={page['pagination']['cursor']}")).ok()
    assert (len(items_of(page, "secrets")), page["pagination"]["has_more"]) == (5, False)


async def test_both_names_count_in_the_size_of_a_page(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await secrets_path(sqlite_plane)
    monkeypatch.setattr(lists, "PAGE_BYTES", 10_000)
    async with sqlite_plane.client.get(path, headers={"Authorization": f"Bearer {sqlite_plane.key}"}) as answer:
        size = len(await answer.read())
    assert 9_000 < size < 11_000
