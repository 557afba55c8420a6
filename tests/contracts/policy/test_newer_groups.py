"""Groups of a newer control: what this version does not know of them is never ignored. Their calls are answered 503."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policy.snapshot import Row
from proxy.edges.policy.supervisor.group_probe import GroupProbe
from proxy.errors import PolicyUnavailableError
from proxy.records.supervisor.findings import OK
from tests.contracts.policy.test_replica import World, endpoint, group, key, workspace, world

__all__ = ["world"]
Wire = dict[str, Any]


def limit_of(body: Wire) -> Wire:
    limit: Wire = body["models"][0]["rate_limits"][0]
    return limit


def spend_limit(**members: Any) -> Wire:
    return {"unit": "DAY", "amount": "5.00", "currency": "EUR", "enforcement": "SOFT"} | members


NEWER: dict[str, Callable[[Wire], None]] = {
    "a type": lambda body: limit_of(body).update(type="WEIGHTED_REQUEST"),
    "a unit": lambda body: limit_of(body).update(unit="FORTNIGHT"),
    "a member of a limit": lambda body: limit_of(body).update(soft=True),
    "a member of an entry": lambda body: body["models"][0].update(spend_limits=[]),
    "a member of a group": lambda body: body.update(balances=[]),
    "a unit of a spend limit": lambda body: body.update(spend_limits=[spend_limit(unit="FORTNIGHT")]),
    "a spend limit per minute": lambda body: body.update(spend_limits=[spend_limit(unit="MINUTE")]),
    "an enforcement of a spend limit": lambda body: body.update(spend_limits=[spend_limit(enforcement="ADVICE")]),
    "a member of a spend limit": lambda body: body.update(spend_limits=[spend_limit(slug="acme/a")]),
    "an amount that is no text": lambda body: body.update(spend_limits=[spend_limit(amount=5)]),
    "two spend limits of a unit": lambda body: body.update(spend_limits=[spend_limit(), spend_limit()]),
    "spend limits that are no list": lambda body: body.update(spend_limits={"DAY": 5}),
    "a member of a balance": lambda body: body.update(balance(expires_at=1)),
    "a deposit that is no text": lambda body: body.update(balance(deposited=5)),
    "a balance that is a list": lambda body: body.update(balance=[]),
    "an enforcement": lambda body: body.update(enforcement="SHARED"),
    "no list of models": lambda body: body.update(models={"acme/a": {}}),
}


def balance(**members: Any) -> Wire:
    return {"balance": {"currency": "EUR", "deposited": "5.00"} | members}


def newer(change: Callable[[Wire], None], id: str = "g") -> Row:
    row = group(id)
    assert row.body is not None
    change(row.body)
    return row


@pytest.mark.parametrize("change", NEWER.values(), ids=NEWER)
async def test_calls_of_a_group_that_cannot_be_read_are_refused(
    world: World, tmp_path: Path, change: Callable[[Wire], None]
) -> None:
    world.publish(workspace(), endpoint("acme/a"), key("d"), key("e", "other"), newer(change), group("other"))
    probe = GroupProbe(world.path)
    with pytest.raises(PolicyUnavailableError):
        world.key("d")
    with pytest.raises(PolicyUnavailableError):
        world.directory.plan("g", "acme/a")
    assert world.key("e") is not None, "other groups are served"
    assert "calls of 1 group are answered 503" in (await probe.finding(world.replica.version)).degraded
    world.publish(group("g"))
    assert world.key("d") is not None
    assert await probe.finding(world.replica.version) == OK


def test_groups_below_one_that_cannot_be_read_are_refused(world: World) -> None:
    world.publish(workspace(), endpoint("acme/a"), newer(NEWER["a type"], "top"), group("below", "top"))
    with pytest.raises(PolicyUnavailableError):
        world.directory.plan("below", "acme/a")


def test_a_replica_with_such_groups_is_fetched_again_when_a_proxy_starts(world: World) -> None:
    """The proxy that starts may be of a version that can read them."""
    world.publish(workspace(), newer(NEWER["a type"]), group("other"))
    assert world.replica.version.loaded
    world.replica.close()
    world.replica = type(world.replica)(world.path)
    assert not world.replica.version.loaded
