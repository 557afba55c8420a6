"""Keys of a newer control: settings that this version does not know are never ignored, and never look like no key."""

from typing import Any

import pytest

from policy.snapshot import Row
from proxy.edges.policy.supervisor.group_probe import GroupProbe
from proxy.errors import PolicyUnavailableError
from proxy.records.supervisor.findings import OK
from tests.contracts.policy.test_replica import World, endpoint, group, key, workspace, world

__all__ = ["world"]
NEWER: dict[str, dict[str, Any]] = {
    "a setting": {"settings": {"allowed_countries": ["DE"]}},
    "a type of a limit": {"settings": {"rate_limits": [{"type": "WEIGHT", "unit": "MINUTE", "threshold": 1}]}},
    "an end that is no number": {"settings": {"expires_at_ms": "2026-12-01T00:00:00Z"}},
    "an end that is true": {"settings": {"expires_at_ms": True}},
    "disabled for a reason": {"settings": {"disabled": "LEAKED"}},
    "settings that are a list": {"settings": ["disabled"]},
    "a role": {"role": "auditor"},
    "a kind": {"kind": "SERVICE"},
}


def newer(members: dict[str, Any]) -> Row:
    row = key("d")
    assert row.body is not None
    row.body.update(members)
    return row


@pytest.mark.parametrize("members", NEWER.values(), ids=NEWER)
def test_calls_with_a_key_that_cannot_be_read_are_refused_as_our_fault(world: World, members: dict[str, Any]) -> None:
    world.publish(workspace(), endpoint("acme/a"), group("g"), newer(members), key("e"))
    with pytest.raises(PolicyUnavailableError, match="Update this proxy"):
        world.key("d")
    assert world.key("e") is not None, "other keys are served"
    world.publish(key("d"))
    assert world.key("d") is not None


async def test_keys_with_unknown_settings_are_reported(world: World) -> None:
    probe = GroupProbe(world.path)
    readable = newer({"settings": {"disabled": True, "slugs": []}})
    world.publish(workspace(), group("g"), readable, key("e"))
    assert await probe.finding(world.replica.version) == OK
    world.publish(newer(NEWER["a setting"]))
    finding = await probe.finding(world.replica.version)
    assert finding.degraded == "calls of 1 key are answered 503: this version cannot read the settings. Update it"
