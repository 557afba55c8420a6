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
        "cache_write_per_million": "3.00",
        "cache_write_1h_per_million": "3.00",
        "audio_input_per_million": "3.00",
        "image_input_per_million": "3.00",
        "output_per_million": "15.50",
        "audio_output_per_million": "15.50",
        "image_output_per_million": "15.50",
        "per_call": "0.00",
        "per_server_tool_call": "0.00",
        "long_context": None,
        "service_tiers": None,
        "max_input_tokens": None,
        "max_output_tokens": None,
    }
    assert (await plane.put(PATH, PRICE)).ok() == price
    assert (await plane.get(PATH)).ok() == {"items": [price], "pagination": {"has_more": False, "cursor": None}}
    deletion = (await plane.delete(PATH, params={"slug": "acme/chat", "valid_from": "2026-01-01"})).ok()
    assert deletion == {**price, "deleted": True}
    assert (await plane.get(PATH)).ok()["items"] == []


LONG_CONTEXT = {
    "above_input_tokens": 200_000,
    "input_per_million": "6",
    "cached_input_per_million": "0.60",
    "output_per_million": "22.5",
}
WHOLE: Json = {
    **PRICE,
    "cached_input_per_million": "0.30",
    "cache_write_per_million": "3.75",
    "cache_write_1h_per_million": "6.00",
    "audio_input_per_million": "40.00",
    "image_input_per_million": "10.00",
    "audio_output_per_million": "80.00",
    "image_output_per_million": "60.00",
    "per_call": "0.001",
    "per_server_tool_call": "0.01",
    "long_context": LONG_CONTEXT,
    "service_tiers": {
        "priority": {"multiplier": "1.7501"},
        "flex": {"multiplier": "0.50"},
        "x" * 64: {"multiplier": "1000"},
    },
    "max_input_tokens": 1_000_000,
    "max_output_tokens": 64_000,
}


async def test_a_whole_price_is_stored_shown_and_accepted_as_shown(plane: ControlPlane) -> None:
    answer = (await plane.put(PATH, WHOLE)).ok()
    amounts = {"input_per_million": "3.00", "output_per_million": "15.50"}
    assert {name: answer[name] for name in WHOLE if name not in ("long_context", "service_tiers")} == {
        name: value for name, value in (WHOLE | amounts).items() if name not in ("long_context", "service_tiers")
    }
    assert answer["long_context"] == {
        "above_input_tokens": 200_000,
        "input_per_million": "6.00",
        "cached_input_per_million": "0.60",
        "cache_write_per_million": "6.00",
        "output_per_million": "22.50",
    }
    factors = {"flex": "0.5", "priority": "1.7501", "x" * 64: "1000"}
    assert {tier: members["multiplier"] for tier, members in answer["service_tiers"].items()} == factors
    assert (await plane.get(PATH)).ok()["items"] == [answer]
    assert (await plane.put(PATH, answer)).ok() == answer
    assert (await plane.put(PATH, PRICE)).ok()["long_context"] is None
    assert (await plane.get(PATH)).ok()["items"][0]["service_tiers"] is None


@pytest.mark.parametrize(
    "members",
    [
        {"cache_write_per_million": "4"},
        {"cache_write_per_million": "4", "cache_write_1h_per_million": "5"},
        {"cache_write_1h_per_million": "5"},
        {"audio_output_per_million": "0"},
        {"max_output_tokens": 1},
        {"service_tiers": {"flex": {"multiplier": "0"}}},
        {"long_context": LONG_CONTEXT | {"cache_write_per_million": "0"}},
    ],
)
async def test_each_member_of_a_price_alone_is_stored(plane: ControlPlane, members: Json) -> None:
    answer = (await plane.put(PATH, {**PRICE, **members})).ok()
    assert (await plane.get(PATH)).ok()["items"] == [answer]
    assert answer["cache_write_per_million"] == ("4.00" if "cache_write_per_million" in members else "3.00")
    default = answer["cache_write_per_million"]
    assert answer["cache_write_1h_per_million"] == ("5.00" if "cache_write_1h_per_million" in members else default)


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
    "a negative cache write": {"cache_write_per_million": "-1"},
    "a price of tools with an exponent": {"per_server_tool_call": "1e-2"},
    "a bound of text": {"max_input_tokens": "1000"},
    "a bound of 0": {"max_output_tokens": 0},
    "a fraction of a token": {"max_input_tokens": 1.5},
    "a bound beyond all models": {"max_output_tokens": 1_000_000_001},
    "long context of text": {"long_context": "200000"},
    "21 tiers": {"service_tiers": {f"tier{number}": {"multiplier": "1"} for number in range(21)}},
    "tiers in a list": {"service_tiers": ["flex"]},
}
BAD_PARTS: tuple[tuple[str, Json], ...] = (
    ("long_context.above_input_tokens", {"long_context": LONG_CONTEXT | {"above_input_tokens": 0}}),
    ("long_context.output_per_million", {"long_context": LONG_CONTEXT | {"output_per_million": "2,5"}}),
    ("long_context.input_per_million", {"long_context": LONG_CONTEXT | {"input_per_million": None}}),
    ("long_context.cached_input_per_million", {"long_context": {"above_input_tokens": 1, "input_per_million": "1"}}),
    ("long_context.audio_input_per_million", {"long_context": LONG_CONTEXT | {"audio_input_per_million": "1"}}),
    ("service_tiers.flex", {"service_tiers": {"flex": "0.5"}}),
    ("service_tiers.flex.multiplier", {"service_tiers": {"flex": {"multiplier": 0.5}}}),
    ("service_tiers.flex.multiplier", {"service_tiers": {"flex": {"multiplier": "0.12345"}}}),
    ("service_tiers.flex.multiplier", {"service_tiers": {"flex": {"multiplier": "1000.0001"}}}),
    ("service_tiers.flex.multiplier", {"service_tiers": {"flex": {}}}),
    ("service_tiers.flex.factor", {"service_tiers": {"flex": {"multiplier": "1", "factor": "1"}}}),
    ("service_tiers." + "x" * 65, {"service_tiers": {"x" * 65: {"multiplier": "1"}}}),
    ("service_tiers.", {"service_tiers": {"": {"multiplier": "1"}}}),
)


@pytest.mark.parametrize(("path", "part"), BAD_PARTS)
async def test_bad_part_of_a_price_is_refused_by_its_path(sqlite_plane: ControlPlane, path: str, part: Json) -> None:
    refusal = (await sqlite_plane.put(PATH, {**PRICE, **part})).refused(400, "INVALID_REQUEST")
    assert refusal["details"][0]["field"] == path
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


async def test_a_policy_file_owns_a_price_until_it_is_released(plane: ControlPlane) -> None:
    price = (await plane.put(PATH, {**PRICE, "managed_by": "production"})).ok()
    assert (price["managed_by"]["name"], price["managed_by"]["drifted"]) == ("production", False)
    (await plane.put(PATH, {**PRICE, "per_call": "1"})).ok()
    [listed] = (await plane.get(PATH)).ok()["items"]
    assert listed["managed_by"]["name"] == "production"
    assert (await plane.put(PATH, {**PRICE, "managed_by": "production"})).ok()["managed_by"]["drifted"] is False
    assert "managed_by" not in (await plane.put(PATH, {**PRICE, "managed_by": None})).ok()
    assert "managed_by" not in (await plane.get(PATH)).ok()["items"][0]
