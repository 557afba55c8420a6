"""Prices from a public price map: every digit is kept, and what a price cannot say is told."""

import json
from typing import Any

import pytest

from commands.billing.price_map import MappedPrice, PriceMapError, price_of_model, read_price_map
from policy.price_wire import Wire

SIMPLE = '"input_cost_per_token": 1e-06, "output_cost_per_token": 0.000002'


def mapped(members: str) -> MappedPrice:
    """The price of a model with these members, as the map's text has them."""
    return price_of_model(read_price_map(f'{{"some-model": {{{members}}}}}'.encode()), "some-model")


CLAUDE = """
    "cache_creation_input_token_cost": 3.75e-06,
    "cache_creation_input_token_cost_above_1hr": 6e-06,
    "cache_creation_input_token_cost_above_200k_tokens": 7.5e-06,
    "cache_read_input_token_cost": 3e-07,
    "cache_read_input_token_cost_above_200k_tokens": 6e-07,
    "input_cost_per_token": 3e-06,
    "input_cost_per_token_above_200k_tokens": 6e-06,
    "litellm_provider": "anthropic",
    "max_input_tokens": 200000, "max_output_tokens": 64000, "max_tokens": 64000, "mode": "chat",
    "output_cost_per_token": 1.5e-05,
    "output_cost_per_token_above_200k_tokens": 2.25e-05,
    "search_context_cost_per_query": {
        "search_context_size_high": 0.01, "search_context_size_low": 0.01, "search_context_size_medium": 0.01
    },
    "supports_vision": true, "tool_use_system_prompt_tokens": 346
"""
GPT = """
    "cache_read_input_token_cost": 1.25e-07, "cache_read_input_token_cost_flex": 6.25e-08,
    "cache_read_input_token_cost_priority": 2.5e-07,
    "input_cost_per_token": 1.25e-06, "input_cost_per_token_flex": 6.25e-07, "input_cost_per_token_priority": 2.5e-06,
    "max_input_tokens": 272000, "max_output_tokens": 128000,
    "output_cost_per_token": 1e-05, "output_cost_per_token_flex": 5e-06, "output_cost_per_token_priority": 2e-05
"""
AUDIO = """
    "input_cost_per_token": 2.5e-06, "input_cost_per_audio_token": 4e-05, "input_cost_per_image_token": 1e-05,
    "output_cost_per_token": 1e-05, "output_cost_per_audio_token": 8e-05, "output_cost_per_image_token": 4e-05,
    "output_cost_per_reasoning_token": 1e-05
"""
WHOLE: list[tuple[str, Wire]] = [
    (
        CLAUDE,
        {
            "input_per_million": "3",
            "output_per_million": "15",
            "cached_input_per_million": "0.3",
            "cache_write_per_million": "3.75",
            "cache_write_1h_per_million": "6",
            "long_context": {
                "above_input_tokens": 200_000,
                "input_per_million": "6",
                "cached_input_per_million": "0.6",
                "cache_write_per_million": "7.5",
                "output_per_million": "22.5",
            },
            "per_server_tool_call": "0.01",
            "max_input_tokens": 200_000,
            "max_output_tokens": 64_000,
        },
    ),
    (
        GPT,
        {
            "input_per_million": "1.25",
            "output_per_million": "10",
            "cached_input_per_million": "0.125",
            "service_tiers": {"flex": {"multiplier": "0.5"}, "priority": {"multiplier": "2"}},
            "max_input_tokens": 272_000,
            "max_output_tokens": 128_000,
        },
    ),
    (
        AUDIO,
        {
            "input_per_million": "2.5",
            "output_per_million": "10",
            "audio_input_per_million": "40",
            "image_input_per_million": "10",
            "audio_output_per_million": "80",
            "image_output_per_million": "40",
        },
    ),
]


@pytest.mark.parametrize(("members", "price"), WHOLE, ids=["claude", "gpt", "audio"])
def test_a_model_s_price_is_taken_whole(members: str, price: Wire) -> None:
    assert mapped(members).members == price


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("1e-06", "1"),
        ("0.000001", "1"),
        ("1.10e-6", "1.1"),
        ("3.3e-07", "0.33"),
        ("5.46875e-07", "0.546875"),
        ("1e-18", "0.000000000001"),
        ("0", "0"),
        ("0.0", "0"),
        ("7", "7000000"),
    ],
)
def test_numbers_are_read_by_their_digits(number: str, text: str) -> None:
    members = mapped(f'"input_cost_per_token": {number}, "output_cost_per_token": 0').members
    assert members["input_per_million"] == text


NOTED: dict[str, tuple[str, str]] = {
    "one hour cache writes with long context": (CLAUDE, "cache_write_1h is 7.5 with long context"),
    "two bounds of long context": (
        f'{SIMPLE}, "input_cost_per_token_above_128k_tokens": 2e-06, "input_cost_per_token_above_256k_tokens": 3e-06',
        "prices above 128k and 256k tokens are left out",
    ),
    "sound with long context": (
        f'{SIMPLE}, "input_cost_per_token_above_272k_tokens": 2e-06, "input_cost_per_audio_token": 3e-06',
        "audio_input is 2 with long context",
    ),
    "a tier of the input alone": (f'{SIMPLE}, "input_cost_per_token_flex": 5e-07', "service tier flex is left out"),
    "a tier with two factors": (
        f'{SIMPLE}, "input_cost_per_token_priority": 2e-06, "output_cost_per_token_priority": 3e-06',
        "service tier priority is left out",
    ),
    "a tier whose factor has no end": (
        '"input_cost_per_token": 3e-06, "output_cost_per_token": 3e-06,'
        ' "input_cost_per_token_flex": 1e-06, "output_cost_per_token_flex": 1e-06',
        "service tier flex is left out",
    ),
    "a tier without its long context": (
        f'{SIMPLE}, "input_cost_per_token_above_272k_tokens": 2e-06, "input_cost_per_token_priority": 2e-06,'
        ' "output_cost_per_token_priority": 4e-06',
        "service tier priority is left out",
    ),
    "searches of three prices": (
        f'{SIMPLE}, "search_context_cost_per_query": {{"low": 0.03, "medium": 0.035, "high": 0.05}}',
        "search_context_cost_per_query is left out",
    ),
    "two tools of two prices": (
        f'{SIMPLE}, "search_context_cost_per_query": {{"low": 0.01}}, "file_search_cost_per_1k_calls": 2.5',
        "file_search_cost_per_1k_calls is left out",
    ),
    "batches": (f'{SIMPLE}, "input_cost_per_token_batches": 5e-07', "input_cost_per_token_batches is left out"),
    "pictures by the piece": (f'{SIMPLE}, "input_cost_per_image": 0.01', "input_cost_per_image is left out"),
    "sessions": (f'{SIMPLE}, "code_interpreter_cost_per_session": 0.03', "code_interpreter_cost_per_session is left"),
    "dearer reasoning": (f'{SIMPLE}, "output_cost_per_reasoning_token": 9e-06', "output_cost_per_reasoning_token is"),
    "factors of a provider": (f'{SIMPLE}, "provider_specific_entry": {{"us": 1.1}}', "provider_specific_entry is left"),
    "steps of a price": (f'{SIMPLE}, "tiered_pricing": [{{"range": [0, 1]}}]', "tiered_pricing is left out"),
}


@pytest.mark.parametrize("name", sorted(NOTED))
def test_what_a_price_cannot_say_is_told(name: str) -> None:
    members, note = NOTED[name]
    assert any(note in one for one in mapped(members).notes), mapped(members).notes


def test_nothing_is_told_of_a_model_that_is_taken_whole() -> None:
    assert [mapped(members).notes for members in (GPT, AUDIO, SIMPLE)] == [[], [], []]


def test_a_tool_s_price_by_thousands_is_that_of_a_call() -> None:
    assert mapped(f'{SIMPLE}, "file_search_cost_per_1k_calls": 2.5').members["per_server_tool_call"] == "0.0025"


def test_an_embedding_model_has_no_output() -> None:
    assert mapped('"input_cost_per_token": 1e-07, "mode": "embedding"').members["output_per_million"] == "0"


def test_long_context_has_the_plain_price_of_what_it_does_not_name() -> None:
    members = f'{SIMPLE}, "cache_read_input_token_cost": 1e-07, "output_cost_per_token_above_128k_tokens": 5e-06'
    assert mapped(members).members["long_context"] == {
        "above_input_tokens": 128_000,
        "input_per_million": "1",
        "cached_input_per_million": "0.1",
        "output_per_million": "5",
    }


RANGES = """
    "input_cost_per_token": 9e-06, "output_cost_per_token": 9e-06, "cache_read_input_token_cost": 9e-06,
    "tiered_pricing": [
        {"range": [0, 256000.0], "input_cost_per_token": 5e-08, "output_cost_per_token": 4e-07},
        {"range": [256000.0, 1000000.0], "input_cost_per_token": 2.5e-07, "output_cost_per_token": 2e-06}
    ]
"""


def test_a_table_of_two_ranges_is_long_context() -> None:
    price = mapped(RANGES)
    assert price.members == {
        "input_per_million": "0.05",
        "output_per_million": "0.4",
        "long_context": {
            "above_input_tokens": 256_000,
            "input_per_million": "0.25",
            "cached_input_per_million": "0.25",
            "output_per_million": "2",
        },
    }
    assert price.notes == []


def test_reasoning_of_a_table_at_a_price_of_its_own_is_told() -> None:
    members = RANGES.replace("2e-06}", '2e-06, "output_cost_per_reasoning_token": 4e-06}').replace(
        "4e-07}", '4e-07, "output_cost_per_reasoning_token": 4e-07}'
    )
    assert [note.partition(" ")[0] for note in mapped(members).notes] == [
        "output_cost_per_reasoning_token_above_256k_tokens"
    ]


@pytest.mark.parametrize(
    "table",
    [
        '[{"range": [0, 1000], "input_cost_per_token": 2e-06}]',
        '[{"range": [0, 1000], "input_cost_per_token": 2e-06}, {"range": [2000, 3000], "input_cost_per_token": 1}]',
        '[{"range": [0, 1500], "input_cost_per_token": 2e-06}, {"range": [1500, 3000], "input_cost_per_token": 1}]',
        '[{"range": [0, 1000], "input_cost_per_token": 2e-06}, {"range": [1000, 3000]}]',
        '[{"range": [0, 1000]}, {"range": [1000, 3000]}]',
        '[{"range": [0, "1000"], "input_cost_per_token": 1}, {"range": ["1000", 2000], "input_cost_per_token": 1}]',
        '[{"input_cost_per_token": 1}, {"input_cost_per_token": 1}]',
        '[{"range": [0, 1e999999]}, {"range": [1e999999, 2]}]',
        "[1, 2]",
        '"a table"',
    ],
)
def test_another_table_is_told(table: str) -> None:
    price = mapped(f'{SIMPLE}, "tiered_pricing": {table}')
    assert price.members == {"input_per_million": "1", "output_per_million": "2"}
    assert price.notes == ["tiered_pricing is left out: a price has no member for it"]


def test_sound_alone_has_no_long_context() -> None:
    sound = '"input_cost_per_audio_token": 1e-06, "input_cost_per_audio_token_above_200k_tokens"'
    same = mapped(f"{SIMPLE}, {sound}: 1e-06")
    dearer = mapped(f"{SIMPLE}, {sound}: 2e-06")
    assert "long_context" not in same.members
    assert same.members == dearer.members
    assert same.notes == []
    assert dearer.notes == ["audio_input above 200k tokens is left out: only text has a price with long context"]


@pytest.mark.parametrize("tier", ["flex", "priority", "balanced", "ultrafast"])
def test_every_service_tier_of_the_map_is_taken(tier: str) -> None:
    members = f'{SIMPLE}, "input_cost_per_token_{tier}": 3e-06, "output_cost_per_token_{tier}": 6e-06'
    assert mapped(members).members["service_tiers"] == {tier: {"multiplier": "3"}}


def test_the_price_of_a_request_is_that_of_a_call() -> None:
    price = mapped('"input_cost_per_token": 0.0, "output_cost_per_token": 0.0, "input_cost_per_request": 0.005')
    assert price.members["per_call"] == "0.005"
    assert price.notes == []


def test_a_second_name_for_the_price_of_cached_input_is_not_told() -> None:
    cached = '"cache_read_input_token_cost": 1e-07, "input_cost_per_token_cache_hit"'
    assert mapped(f"{SIMPLE}, {cached}: 1e-07").notes == []
    assert mapped(f"{SIMPLE}, {cached}: 2e-07").notes != []


def test_an_alias_has_the_price_of_its_model() -> None:
    models = read_price_map(f'{{"new": {{"alias_of": "a"}}, "a": {{"alias_of": "b"}}, "b": {{{SIMPLE}}}}}'.encode())
    assert price_of_model(models, "new") == price_of_model(models, "b")


@pytest.mark.parametrize("target", ["nobody", "some-model", "other", 1, ["x"], None])
def test_an_alias_of_no_model_is_refused(target: object) -> None:
    models: dict[str, Any] = {"some-model": {"alias_of": target}, "other": {"alias_of": "some-model"}}
    with pytest.raises(PriceMapError, match=r"some-model: alias_of .* names no model of the map; set its price with"):
        price_of_model(models, "some-model")


WRONG: dict[str, tuple[str, str]] = {
    "13 digits after the point": ('"input_cost_per_token": 1e-19, "output_cost_per_token": 1', "input_cost_per_token"),
    "a large number": ('"input_cost_per_token": 1, "output_cost_per_token": 1e7', "output_cost_per_token"),
    "a number without end": ('"input_cost_per_token": 1e-999999, "output_cost_per_token": 1', "input_cost_per_token"),
    "a negative price": ('"input_cost_per_token": -1e-06, "output_cost_per_token": 1', "input_cost_per_token"),
    "text": ('"input_cost_per_token": "1e-06", "output_cost_per_token": 1', "input_cost_per_token is no number"),
    "true": ('"input_cost_per_token": true, "output_cost_per_token": 1', "input_cost_per_token is no number"),
    "no price by tokens": ('"output_cost_per_image": 0.04', "has no input_cost_per_token"),
    "no price by tokens but others": (
        '"output_cost_per_image": 0.04, "input_cost_per_second": 1',
        "its prices in the map are input_cost_per_second, output_cost_per_image; set its price with `tollgate prices",
    ),
    "no price at all": ('"mode": "chat"', "has no input_cost_per_token: the map has no price for it; set its price"),
    "free tokens and a price of something else": (
        '"input_cost_per_token": 0.0, "output_cost_per_token": 0.0, "input_cost_per_query": 0.002',
        "costs nothing by tokens: its prices in the map are input_cost_per_query; set its price",
    ),
    "13 digits in a table": (
        RANGES.replace("2.5e-07", "1e-19"),
        r"k_tokens \(of tiered_pricing\) is 1.0*E-13; .*`toll",
    ),
    "a search without a number": (
        f'{SIMPLE}, "search_context_cost_per_query": {{"low": "free"}}',
        "search_context_cost_per_query has what is no number; set its price",
    ),
    "no output": ('"input_cost_per_token": 1e-06', "has no output_cost_per_token"),
    "no number at all": ('"input_cost_per_token": NaN', "NaN is no number"),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_price_is_refused_by_its_member(name: str) -> None:
    members, message = WRONG[name]
    with pytest.raises(PriceMapError, match=message):
        mapped(members)


def test_an_unknown_model_is_refused_with_names_near_it() -> None:
    models: dict[str, Any] = {name: {} for name in ("gpt-5", "gpt-5-mini", "claude-sonnet-4-5", "command-r")}
    with pytest.raises(PriceMapError, match="no model 'gpt5'; near it are gpt-5, gpt-5-mini"):
        price_of_model(models, "gpt5")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", json.dumps("x").encode()])
def test_a_file_that_is_no_price_map_is_refused(content: bytes) -> None:
    with pytest.raises(PriceMapError, match="not a price map"):
        read_price_map(content)
