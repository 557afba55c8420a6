"""Workspaces and their keys, on both databases (docs/reference/command-line.md#administration)."""

from typing import Any

import orjson
import pytest
from sqlalchemy import select

from control.edges.sql.store import Store
from control.edges.sql.tables import published
from control.resources import workspaces
from control.resources.workspaces import WorkspaceError
from policy.credentials import KeyKind, prefix_of

BODY_BYTES: list[tuple[str, dict[str, Any]]] = [
    ("Acme", {"async_max_body_bytes": value}) for value in (0, -1, 100_000_001, "1", 1.5)
]


async def kinds_published(store: Store) -> list[str]:
    async with store.read() as conn:
        return sorted((await conn.execute(select(published.c.kind))).scalars())


async def test_a_workspace_is_created_with_a_key(store: Store) -> None:
    workspace = await workspaces.create_workspace(store, "Acme", ["acme", "acme2", "acme"])
    assert workspace.keys() == {"workspace_id", "name", "prefixes", "api_key"}
    assert workspace["prefixes"] == ["acme", "acme2"]
    assert prefix_of(workspace["api_key"])
    assert await kinds_published(store) == ["key", "workspace"]
    (item,) = await workspaces.list_workspaces(store)
    assert item == {
        "workspace_id": workspace["workspace_id"],
        "name": "Acme",
        "prefixes": ["acme", "acme2"],
        "tier": "basic",
        "billing": "active",
        "onboarded": True,
        "training": False,
        "async_max_body_bytes": None,
    }


async def test_a_changed_workspace_is_published_again(store: Store) -> None:
    await workspaces.create_workspace(store, "Acme", ["acme"], "pro", False)
    changed = await workspaces.set_workspace(store, "Acme", billing="suspended", onboarded=True, tier=None)
    assert (changed["billing"], changed["onboarded"], changed["tier"]) == ("suspended", True, "pro")
    async with store.read() as conn:
        query = select(published.c.body, published.c.revision).where(published.c.kind == "workspace")
        assert tuple((await conn.execute(query)).one()) == ('{"billing":"suspended","tier":"pro","onboarded":true}', 2)


async def test_the_longest_asynchronous_body_is_published_and_kept_by_other_changes(store: Store) -> None:
    await workspaces.create_workspace(store, "Acme", ["acme"])
    await workspaces.set_workspace(store, "Acme", async_max_body_bytes=1_000_000)
    await workspaces.set_workspace(store, "Acme", onboarded=False)
    async with store.read() as conn:
        query = select(published.c.body).where(published.c.kind == "workspace")
        assert orjson.loads((await conn.execute(query)).scalar_one())["async_max_body_bytes"] == 1_000_000
    changed = await workspaces.set_workspace(store, "Acme", async_max_body_bytes=workspaces.DEFAULT)
    assert changed["async_max_body_bytes"] is None
    async with store.read() as conn:
        assert "async" not in (await conn.execute(query)).scalar_one()


async def test_a_further_workspace_key_is_created_and_published(store: Store) -> None:
    await workspaces.create_workspace(store, "Acme", ["acme"])
    key = await workspaces.create_workspace_key(store, "Acme", KeyKind.WORKSPACE_INVOKE)
    assert key["type"] == "WORKSPACE_INVOKE"
    assert await kinds_published(store) == ["key", "key", "workspace"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("Acme", ["new"]), "name"),
        (("New", ["acme"]), "prefix"),
        (("New", ["new", "acme"]), "prefix"),
        (("New", []), "prefix"),
        (("New", ["a/b"]), "prefix"),
        (("", ["new"]), "name"),
        (("New\n", ["new"]), "name"),
        (("New", ["new"], ""), "tier"),
    ],
)
async def test_a_refused_workspace_is_not_stored(store: Store, arguments: Any, says: str) -> None:
    await workspaces.create_workspace(store, "Acme", ["acme"])
    with pytest.raises(WorkspaceError, match=says):
        await workspaces.create_workspace(store, *arguments)
    assert len(await workspaces.list_workspaces(store)) == 1


async def test_an_invalid_change_of_a_workspace_is_refused(store: Store) -> None:
    await workspaces.create_workspace(store, "Acme", ["acme"])
    for name, changes in (
        ("Nobody", {"tier": "x"}),
        ("Acme", {}),
        ("Acme", {"billing": "x"}),
        ("Acme", {"id": "x"}),
        *BODY_BYTES,
    ):
        with pytest.raises(WorkspaceError):
            await workspaces.set_workspace(store, name, **changes)
    with pytest.raises(WorkspaceError):
        await workspaces.create_workspace_key(store, "Nobody")
    with pytest.raises(WorkspaceError):
        await workspaces.create_workspace_key(store, "Acme", KeyKind.FEDERATED)
