"""Commands seal under the key that control seals under, or not at all."""

import pytest

from control.edges.sql import secret_rows
from control.edges.sql.store import Store
from control.resources.sealing.key_notes import KeyNotes
from control.resources.sealing.resealing import SealingKeyError, look, reencrypt
from policy.sealing import key_ids
from tests.control.plane import SECRET_KEYS, ControlPlane
from tests.waiting import eventually

NEW = b"n" * 32


async def noted(store: Store) -> tuple[str, ...]:
    async with store.read() as conn:
        return await secret_rows.noted_key_ids(conn)


async def until_noted(store: Store, *keys: bytes) -> None:
    async def is_noted() -> bool:
        return await noted(store) == key_ids(keys)

    await eventually(is_noted)


async def fill(plane: ControlPlane) -> None:
    """One of everything that is sealed."""
    await plane.secret("upstream")
    (await plane.get("/v1/async/webhook_secret")).ok()
    (await plane.post("/v1/async/webhook_secret", {})).ok()
    hook = (await plane.post("/v1/gateway/webhooks", {"url": "https://hooks.example/in"})).ok()
    path = f"/v1/gateway/webhooks/{hook['id']}"
    (await plane.patch(path, {"rotate_secret": True, "secret_overlap_seconds": 60})).ok()


async def test_a_command_with_another_first_key_than_control_changes_nothing(plane: ControlPlane) -> None:
    await fill(plane)
    await until_noted(plane.store, *SECRET_KEYS)
    for keys in ((NEW,), (NEW, *SECRET_KEYS)):
        with pytest.raises(SealingKeyError, match="Nothing was changed") as caught:
            await reencrypt(plane.store, keys)
        assert key_ids(SECRET_KEYS)[0] in str(caught.value)
        assert "restart" in str(caught.value), "the remedy"
    assert await look(plane.store, SECRET_KEYS) == await look(plane.store, (*SECRET_KEYS, NEW))
    assert (await look(plane.store, SECRET_KEYS)).not_under_first == 0


async def test_a_command_seals_everything_under_the_key_that_control_has_first(plane: ControlPlane) -> None:
    await fill(plane)
    await until_noted(plane.store, *SECRET_KEYS)
    before = await look(plane.store, (NEW, *SECRET_KEYS))
    assert (before.total, before.not_under_first, before.unopened) == (5, 5, 0)
    await KeyNotes(plane.store, (NEW, *SECRET_KEYS)).note()
    with pytest.raises(SealingKeyError):
        await reencrypt(plane.store, SECRET_KEYS)
    assert await reencrypt(plane.store, (NEW, *SECRET_KEYS)) == {"reencrypted": 1}
    after = await look(plane.store, (NEW,))
    assert (after.total, after.not_under_first, after.unopened) == (5, 0, 0)
    assert after.noted == key_ids((NEW, *SECRET_KEYS))


async def test_the_note_follows_keys_that_change(sqlite_plane: ControlPlane) -> None:
    await until_noted(sqlite_plane.store, *SECRET_KEYS)
    keys = [NEW]
    notes = KeyNotes(sqlite_plane.store, keys)
    await notes.note()
    assert await noted(sqlite_plane.store) == key_ids([NEW])
    keys.insert(0, b"m" * 32)
    await notes.note()
    assert await noted(sqlite_plane.store) == key_ids(keys)


async def test_a_value_of_a_lost_key_is_counted(sqlite_plane: ControlPlane) -> None:
    await fill(sqlite_plane)
    outcome = await look(sqlite_plane.store, (NEW,))
    assert (outcome.not_under_first, outcome.unopened) == (5, 5)
