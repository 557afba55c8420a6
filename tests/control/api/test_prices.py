"""`/v1/gateway/prices`: decimal text in and out, one price for each slug and date.

See docs/reference/usage-reports.md#prices.
"""

import pytest

from control.resources.billing import prices
from tests.control.plane import ControlPlane, Json

PATH = "/v1/gateway/prices"
PRICE = {
    "slug": "acme/chat",
    "valid_from": "2026-01-01",
    "currency": "EUR",
    "input_per_million": "3",
    "output_per_million": "15.5",
}


async def test_a_price_has_the_documented_form_and_defaults(plane: ControlPlane) -> None:
    price = {
        "slug": "acme/chat",
        "valid_from": "2026-01-01",
        "currency": "EUR",
        "input_per_million": "3.00",
        "cached_input_per_million": "3.00",
        "output_per_million": "15.50",
        "per_call": "0.00",
    }
    assert (await plane.put(PATH, PRICE)).ok() == price
    assert (await plane.get(PATH)).ok() == {"items": [price], "pagination": {"has_more": False, "cursor": None}}
    assert (await plane.delete(PATH, params={"slug": "acme/chat", "valid_from": "2026-01-01"})).ok() == price
    assert (await plane.get(PATH)).ok()["items"] == []


async def test_every_digit_of_a_price_is_kept(plane: ControlPlane) -> None:
    amounts = {"input_per_million": "999999999999.999999999999", "output_per_million": "0.000000000001"}
    price = (await plane.put(PATH, {**PRICE, **amounts})).ok()
    assert {name: price[name] for name in amounts} == amounts


async def test_the_same_date_replaces_and_another_date_adds(plane: ControlPlane) -> None:
    for valid_from, amount in (("2026-01-01", "1"), ("2026-02-01", "2"), ("2026-01-01", "3")):
        (await plane.put(PATH, {**PRICE, "valid_from": valid_from, "input_per_million": amount})).ok()
    (await plane.put(PATH, {**PRICE, "slug": "acme/a"})).ok()
    listed = []
    cursor = None
    while True:
        page = (await plane.get(PATH, params={"cursor": cursor} if cursor else {"limit": 1})).ok()
        listed += page["items"]
        if (cursor := page["pagination"]["cursor"]) is None:
            break
    rows = [(item["slug"], item["valid_from"], item["input_per_million"]) for item in listed]
    assert rows == [
        ("acme/a", "2026-01-01", "3.00"),
        ("acme/chat", "2026-01-01", "3.00"),
        ("acme/chat", "2026-02-01", "2.00"),
    ]
    of_one = (await plane.get(PATH, params={"slug": "acme/a"})).ok()["items"]
    assert [item["slug"] for item in of_one] == ["acme/a"]


BAD_VALUES: dict[str, Json] = {
    "a float": {"input_per_million": 3.5},
    "an exponent": {"input_per_million": "1e3"},
    "negative": {"input_per_million": "-1"},
    "not a number": {"input_per_million": "NaN"},
    "a comma": {"output_per_million": "1,5"},
    "other digits": {"output_per_million": "\u0661"},
    "13 digits": {"output_per_million": "1234567890123"},
    "13 decimals": {"per_call": "0.1234567890123"},
    "a line break": {"per_call": "1\n"},
    "a lower-case currency": {"currency": "eur"},
    "a time": {"valid_from": "2026-01-01T00:00:00Z"},
    "no such day": {"valid_from": "2026-02-30"},
    "before 1970": {"valid_from": "1969-12-31"},
    "a slug of another workspace": {"slug": "other/chat"},
    "not a slug": {"slug": "chat"},
    "an unknown field": {"price": "1"},
}


@pytest.mark.parametrize("name", sorted(BAD_VALUES))
async def test_bad_prices_are_refused_by_field(sqlite_plane: ControlPlane, name: str) -> None:
    refusal = (await sqlite_plane.put(PATH, {**PRICE, **BAD_VALUES[name]})).refused(400, "INVALID_REQUEST")
    assert refusal["details"][0]["field"] == next(iter(BAD_VALUES[name]))
    assert (await sqlite_plane.get(PATH)).ok()["items"] == []


async def test_an_unknown_price_is_a_404(sqlite_plane: ControlPlane) -> None:
    (await sqlite_plane.put(PATH, PRICE)).ok()
    query = {"slug": "acme/chat", "valid_from": "2026-01-02"}
    (await sqlite_plane.delete(PATH, params=query)).refused(404, "NOT_FOUND")


async def test_a_workspace_has_a_bounded_number_of_prices(
    sqlite_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "MAX_PRICES", 1)
    (await sqlite_plane.put(PATH, PRICE)).ok()
    (await sqlite_plane.put(PATH, {**PRICE, "slug": "acme/b"})).refused(409, "CONFLICT")
    (await sqlite_plane.put(PATH, {**PRICE, "input_per_million": "4"})).ok()
