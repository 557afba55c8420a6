"""Prices from a file: each wrong cell is named by line and column, and a file with one sets nothing."""

from typing import Any

import pytest

from commands.billing.price_file import PATH, PriceFileError, read_prices, set_prices
from commands.errors import RefusedError
from tests.commands.fake_api import FakeApi, page

HEADER = "slug,valid_from,currency,input_per_million,cached_input_per_million,output_per_million,per_call\n"
SHORT = "slug,valid_from,currency,input_per_million,output_per_million\n"
LONG = ",".join(
    f"long_context.{name}"
    for name in ("above_input_tokens", "input_per_million", "cached_input_per_million", "output_per_million")
)
GOOD = "acme/a,2026-11-01,EUR,1,,2,\n"
WRONG: dict[str, tuple[str, str]] = {
    "an amount with an exponent": (
        f"{HEADER}{GOOD}acme/b,2026-11-01,EUR,1e3,,2,\n",
        "line 3, column input_per_million",
    ),
    "a date that is not there": (f"{HEADER}acme/a,2026-02-30,EUR,1,,2,\n", "line 2, column valid_from"),
    "a small currency": (f"{HEADER}acme/a,2026-11-01,eur,1,,2,\n", "line 2, column currency"),
    "a negative price": (f"{HEADER}acme/a,2026-11-01,EUR,1,,2,-1\n", "line 2, column per_call"),
    "an empty amount": (f"{HEADER}acme/a,2026-11-01,EUR,1,,,\n", "line 2, column output_per_million"),
    "no slug": (f"{HEADER}chat,2026-11-01,EUR,1,,2,\n", "line 2, column slug"),
    "a price twice": (HEADER + GOOD + GOOD, "line 3, column valid_from: line 2 has"),
    "too few cells": (f"{HEADER}acme/a,2026-11-01\n", "line 2: 2 cells, but the header has 7"),
    "an unknown column": ("price,slug\n", "line 1: unknown column 'price'"),
    "a missing column": ("slug,currency\n", "line 1: column valid_from is missing"),
    "a column twice": (f"slug,{HEADER}", "line 1: column slug is there twice"),
    "an unknown part": (
        f"long_context.per_call,{HEADER}",
        "line 1: unknown column 'long_context.per_call'",
    ),
    "a part of a column that must be whole": (f"long_context.input_per_million,{SHORT}", "is missing"),
    "long context without its output": (
        f"{LONG},{SHORT}9,6,0.6,,acme/a,2026-11-01,EUR,1,2\n",
        "line 2, column long_context.output_per_million",
    ),
    "a factor with five digits": (
        f"service_tiers.flex.multiplier,{SHORT}0.12345,acme/a,2026-11-01,EUR,1,2\n",
        "line 2, column service_tiers.flex.multiplier",
    ),
    "no tokens at most": (f"max_output_tokens,{SHORT}0,acme/a,2026-11-01,EUR,1,2\n", "column max_output_tokens"),
    "an open quote": (f'{HEADER}"acme/a', "line 2: no CSV"),
    "an empty file": ("", "line 1: column slug is missing"),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_file_is_refused_by_line_and_column(name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(PriceFileError) as refused:
        read_prices(text.encode())
    assert message in str(refused.value)
    assert str(refused.value).endswith("Nothing was set.")


def test_every_wrong_line_is_named_and_bytes_that_are_no_text() -> None:
    with pytest.raises(PriceFileError) as refused:
        read_prices((HEADER + "acme/a,x,y,1,,2,\n" * 20).encode())
    assert str(refused.value).count("\n") == 11
    assert "line 3, column currency" in str(refused.value)
    with pytest.raises(PriceFileError, match="line 2: no text in UTF-8"):
        read_prices(HEADER.encode() + b"\xff")


def test_a_spreadsheet_s_file_is_read() -> None:
    [price] = read_prices(
        "\ufeff".encode() + SHORT.replace("\n", "\r\n").encode() + b"\r\nacme/a, 2026-11-01 ,EUR,1,2\r\n"
    )
    assert price.source == "line 3"
    assert price.body == {
        "slug": "acme/a",
        "valid_from": "2026-11-01",
        "currency": "EUR",
        "input_per_million": "1",
        "output_per_million": "2",
    }


def test_each_member_of_a_price_has_a_column_and_empty_cells_have_their_default() -> None:
    tiers = "service_tiers.flex.multiplier,service_tiers.v1.5.multiplier"
    others = "cache_write_1h_per_million,per_server_tool_call,max_input_tokens"
    whole, plain = read_prices(
        f"{SHORT[:-1]},{others},{LONG},{tiers}\n"
        "acme/a,2026-11-01,EUR,1,2,3,0.01,1000,200000,6,0.6,22.5,0.5,1.75\n"
        "acme/b,2026-11-01,EUR,1,2,,,,,,,,,\n".encode()
    )
    assert whole.body == {
        "slug": "acme/a",
        "valid_from": "2026-11-01",
        "currency": "EUR",
        "input_per_million": "1",
        "output_per_million": "2",
        "cache_write_1h_per_million": "3",
        "per_server_tool_call": "0.01",
        "max_input_tokens": 1000,
        "long_context": {
            "above_input_tokens": 200_000,
            "input_per_million": "6",
            "cached_input_per_million": "0.6",
            "output_per_million": "22.5",
        },
        "service_tiers": {"flex": {"multiplier": "0.5"}, "v1.5": {"multiplier": "1.75"}},
    }
    assert set(plain.body) == {"slug", "valid_from", "currency", "input_per_million", "output_per_million"}
    assert not plain.is_as({**plain.body, "cache_write_per_million": "2"})
    assert plain.is_as({**plain.body, "cache_write_per_million": "1.00", "service_tiers": None})


def priced(slug: str, amount: str) -> dict[str, str]:
    return {
        "slug": slug,
        "valid_from": "2026-11-01",
        "currency": "EUR",
        "input_per_million": amount,
        "cached_input_per_million": amount,
        "output_per_million": "2.00",
        "per_call": "0.00",
    }


async def test_a_refused_price_undoes_the_others_and_equal_ones_are_not_set() -> None:
    def put(body: Any, _query: Any) -> Any:
        if body["slug"].startswith("other/"):
            raise RefusedError("400: not yours", 400)
        return body

    old = priced("acme/b", "9.00")
    owned: dict[str, Any] = {"managed_by": {"name": "production", "drifted": False}}
    api = FakeApi(
        {f"GET {PATH}": page(priced("acme/a", "1.00"), old | owned), f"PUT {PATH}": put, f"DELETE {PATH}": {}}
    )
    slugs = ("acme/a", "acme/b", "acme/c", "other/d", "acme/e")
    lines = read_prices((HEADER + "".join(GOOD.replace("acme/a", slug) for slug in slugs)).encode())
    with pytest.raises(PriceFileError, match="line 5: 400: not yours\nNothing was set"):
        await set_prices(api, lines)
    calls = [(method, (body or query).get("slug")) for method, _, body, query in api.requests[1:]]
    assert calls == [
        ("PUT", "acme/b"),
        ("PUT", "acme/c"),
        ("PUT", "other/d"),
        ("DELETE", "acme/c"),
        ("PUT", "acme/b"),
    ]
    assert api.bodies("PUT")[-1] == old
    assert await set_prices(api, lines[:3]) == 2
