"""Prices of slugs in a worker: current with the next look-up, the first price of a slug that is called included."""

from decimal import Decimal

import pytest

from policy.prices import DAY_MS, Price, token_prices
from policy.snapshot import PriceRow, Row, Wire
from tests.contracts.policy.test_replica import World, endpoint, group
from tests.contracts.policy.test_replica import world as world  # the fixture


def price(amount: int, workspace_id: str = "ws", slug: str = "acme/a") -> Row:
    dated = Price(slug, DAY_MS, "EUR", token_prices(Decimal(amount), Decimal(0)))
    return Row("price", slug, 1, PriceRow(slug, workspace_id, (dated,)).to_wire())


def amount(world: World, slug: str = "acme/a") -> int | None:
    """The price of a million tokens of input for calls of the group; None if there is none."""
    route = world.route("g", slug)
    assert route is not None
    tariff = None if route.prices is None else route.prices.tariff(DAY_MS, "", 1)
    return None if tariff is None else tariff.rates.input // 10**16


@pytest.mark.parametrize("reset", [False, True])
def test_each_change_of_a_price_is_seen_on_the_next_lookup(world: World, reset: bool) -> None:
    others = (endpoint("acme/a"), group("g"))
    world.publish(*others)
    assert amount(world) is None
    for row, expected in ((price(1), 1), (price(2), 2), (Row("price", "acme/a", 2, None), None), (price(3), 3)):
        world.publish(row, *(others if reset else ()), reset=reset)
        assert amount(world) == expected


def test_price_of_another_slug_leaves_the_route_as_it_is(world: World) -> None:
    world.publish(endpoint("acme/a"), group("g"), price(1))
    route = world.route("g", "acme/a")
    world.publish(price(2, slug="acme/b"))
    assert world.route("g", "acme/a") is route


def test_price_of_another_workspace_is_none(world: World) -> None:
    world.publish(endpoint("acme/a"), group("g"), price(1, workspace_id="other"))
    assert amount(world) is None


@pytest.mark.parametrize("damage", [{"prices": [{"valid_from": "2026-11-01"}]}, {"prices": None}, {}])
def test_price_that_cannot_be_read_is_none_and_the_slug_is_served(world: World, damage: Wire) -> None:
    world.publish(endpoint("acme/a"), group("g"), Row("price", "acme/a", 1, {"workspace_id": "ws", **damage}))
    assert amount(world) is None
