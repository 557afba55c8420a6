"""The counters of a key's own limits in Redis: they go with the last key of its rotation, and with its group."""

from collections.abc import Sequence
from typing import Any

from control.records.usage import Bucket
from control.resources.federated_keys.revocation import revoke_group_key
from control.resources.groups import remove_group
from control.resources.keys import KeyOwner
from tests.control.plane import ControlPlane

GROUPS = "/v1/gateway/groups"
LIMITS = {"rate_limits": [{"type": "REQUEST", "unit": "MINUTE", "threshold": 5}]}


class Counters:
    """Remembers what is forgotten."""

    def __init__(self) -> None:
        self.forgotten: list[Bucket] = []

    async def forget(self, buckets: Sequence[Bucket]) -> None:
        self.forgotten += buckets


async def test_counters_go_with_the_last_key_of_a_rotation(plane: ControlPlane) -> None:
    root = await plane.group("root")
    child = await plane.group("child", root["id"])
    path = f"{GROUPS}/{child['id']}/api_keys"
    first = (await plane.post(path, LIMITS)).ok()["prefix"]
    later = (await plane.post(f"{path}/{first}/rotate", {"overlap_seconds": 60})).ok()["prefix"]
    counters: Any = Counters()
    owner = KeyOwner(plane.workspace_id, child["id"])
    await revoke_group_key(plane.store, counters, owner, first)
    assert counters.forgotten == []
    await revoke_group_key(plane.store, counters, owner, later)
    assert counters.forgotten == [Bucket(f"tg:{{{root['id']}|group}}", f"key_{first}")]


async def test_counters_go_with_the_group(plane: ControlPlane) -> None:
    root = await plane.group("root")
    child = await plane.group("child", root["id"])
    prefix = (await plane.post(f"{GROUPS}/{child['id']}/api_keys", LIMITS)).ok()["prefix"]
    counters: Any = Counters()
    await remove_group(plane.store, counters, plane.workspace_id, child["id"])
    assert Bucket(f"tg:{{{root['id']}|group}}", f"key_{prefix}") in counters.forgotten
