"""Holders of tokens on a real replica: found by the group's external id, kept until a row behind them changes."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from policy.credentials import KeyKind
from policy.identity.providers import IdentityProviderRow, provider_id
from policy.snapshot import KeyRow, Row
from proxy.directory_values import KeyHolder
from proxy.edges.policy.replica_file import named_group
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.errors import PolicyUnavailableError
from tests.contracts.policy.test_replica import World, group, key, workspace

ID = provider_id("https://i", "a")
TOKEN = "token:" + "0" * 64
KEY = KeyRow(TOKEN, "jwt_0123456789ab", KeyKind.FEDERATED, "ws", None)


def provider(workspace_id: str = "ws", *keys: str) -> IdentityProviderRow:
    return IdentityProviderRow(ID, workspace_id, "https://i", "a", "org", tuple({"kid": key} for key in keys))


def row(published: IdentityProviderRow) -> Row:
    return Row("identity_provider", ID, 1, published.to_wire())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "replica.db")
    world.publish(workspace(), group("g", "root"), group("root"), row(provider()))
    yield world
    for reader in world.readers:
        reader.close()
    world.replica.close()


def found(world: World, entity: str = "ext-g", published: IdentityProviderRow | None = None) -> KeyHolder | None:
    return world.directory.token_holder(published or provider(), entity, KEY)


def kept(world: World) -> KeyHolder | None:
    return world.directory.key_holder(TOKEN)


def test_holder_is_the_group_of_that_external_id(world: World) -> None:
    assert kept(world) is None
    holder = found(world)
    assert holder is not None
    assert holder.group is not None
    assert (holder.key.group_id, holder.group.path) == ("g", ("g", "root"))
    assert kept(world) is holder


@pytest.mark.parametrize("entity", ["ext-x", "", "ext-G", "g", "%", "ext-g\0", "\ud800"])
def test_no_other_text_finds_a_group(world: World, entity: str) -> None:
    assert found(world, entity) is None


def test_group_of_another_workspace_is_not_found(world: World) -> None:
    elsewhere = provider("other")
    world.publish(row(elsewhere))
    assert found(world, published=elsewhere) is None


def test_provider_that_has_changed_meanwhile_finds_nothing(world: World) -> None:
    world.publish(row(provider("ws", "second")))
    assert found(world) is None
    assert found(world, published=provider("ws", "second")) is not None


CHANGES = {
    "other keys": row(provider("ws", "second")),
    "no provider": Row("identity_provider", ID, 2, None),
    "another group": group("g", threshold=9),
    "another ancestor": group("root", "top"),
    "no group": Row("group", "g", 2, None),
    "suspended": workspace("suspended"),
}


@pytest.mark.parametrize("change", list(CHANGES.values()), ids=list(CHANGES))
def test_holder_is_forgotten_with_a_change_of_what_it_rests_on(world: World, change: Row) -> None:
    assert found(world) is not None
    world.publish(change)
    assert kept(world) is None


def test_holder_survives_changes_of_other_rows(world: World) -> None:
    holder = found(world)
    world.publish(key("d"), group("other"))
    assert kept(world) is holder


def test_token_is_never_looked_for_among_keys(world: World) -> None:
    world.publish(key(TOKEN))
    assert kept(world) is None


def test_group_that_this_version_cannot_read_is_an_outage(world: World) -> None:
    unreadable = group("g")
    assert unreadable.body is not None
    world.publish(Row("group", "g", 2, {**unreadable.body, "new_limits": []}))
    with pytest.raises(PolicyUnavailableError):
        found(world)


def plan_of_a_look_up(path: Path) -> str:
    with closing(sqlite3.connect(path)) as conn:
        query = f"EXPLAIN QUERY PLAN SELECT id FROM groups g0 WHERE {named_group('g0.')}"
        return str(conn.execute(query, ("e", "w")).fetchall())


def test_groups_are_found_by_an_index(world: World) -> None:
    assert "USING INDEX groups_by_name" in plan_of_a_look_up(world.path)


def test_file_of_before_tokens_serves_and_gets_the_index(world: World) -> None:
    world.replica.close()
    with closing(sqlite3.connect(world.path)) as conn:
        conn.executescript("DROP INDEX groups_by_name; PRAGMA user_version = 4;")
    assert found(world) is not None  # the supervisor may be of the version before
    world.replica = PolicyReplica(world.path)
    assert world.replica.version.revision == 1
    assert "USING INDEX groups_by_name" in plan_of_a_look_up(world.path)
    reader = world.reader()
    assert reader.token_holder(provider(), "ext-g", KEY) is not None
