"""The most that a call can cost in money: sums worked out by hand, and no bill within the figures above the bound."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.billing import Details, Tokens
from policy.prices import DAY_MS, LongContext, Price, TokenPrices, cost_figures
from policy.snapshot import PriceRow
from policy.spend.spend_hash import picos_of, units_of_picos
from proxy.accounting import call_bound
from proxy.accounting.call_bound import TOOLS_TOKENS, most_input
from proxy.accounting.cost_bounds.cost_bound import CAPPED_PATHS, LEAST_CAP, CostBound, Unbounded, cost_bound
from proxy.accounting.cost_bounds.dearest_rates import dearest_rates
from proxy.accounting.cost_bounds.vendor_tools import RESPONSES_PATH
from proxy.accounting.slug_prices import SlugPrices
from tests.proxy.accounting.cost_bounds.calls import (
    A_MILLIONTH,
    CHAT,
    MESSAGES,
    RESPONSES,
    FakeCall,
    call,
    price,
    tokens,
)
from tests.proxy.dialects.samples import FakeIncoming

COMPLETIONS = "/v1/completions"
PICTURE = {"type": "image_url", "image_url": {"url": "https://x.test/cat"}}
SEEN = {"messages": [{"role": "user", "content": [PICTURE]}]}
SAID: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
COMPUTER = {"type": "computer_20250124", "name": "computer"}
BASH = {"type": "bash_20250124", "name": "bash"}
SIZED = {"max_input_tokens": 128_000, "max_output_tokens": 4000}


LONG_CONTEXT = FakeIncoming((("anthropic-beta", "a,Context-1M-2025-08-07"),))
GENERATIONS = "/v1/images/generations"


class FakeForm:
    """A form, of which a bound reads nothing."""


FORM: Any = FakeForm()
CASES: dict[str, tuple[FakeCall, Price, int, int, int, int]] = {
    # input 2, output 10 per million; the expected figures: least and whole cost in millionths, least and whole cap
    "a byte is a token": (call(SAID, body_bytes=500, output_cap=100), price(), 500 * 2 + 16 * 10, 1000 + 1000, 16, 100),
    "per_call": (call(SAID, body_bytes=1, output_cap=16), price(per_call=Decimal("0.5")), 500_162, 500_162, 16, 16),
    "each of n answers has the cap": (
        *(call(SAID, body_bytes=500, output_cap=100, answers=3), price()),
        *(1000 + 3 * 160, 1000 + 3 * 1000, 16, 100),
    ),
    "a cap below the least is its own least": (call(SAID, body_bytes=5, output_cap=7), price(), 80, 80, 7, 7),
    "no cap: the price's most output": (
        *(call(SAID, body_bytes=500), price(**SIZED)),
        *(1000 + 160, 1000 + 40_000, 16, 4000),
    ),
    "no cap, no most output: assumed": (call(SAID, body_bytes=500), price(), 1160, 1000 + 81_920, 16, 8192),
    "a cap above the most output": (
        *(call(SAID, body_bytes=500, output_cap=10**9), price(**SIZED)),
        *(1160, 41_000, 16, 4000),
    ),
    "tools": (
        *(call(SAID | {"tools": TOOLS}, body_bytes=500, output_cap=16), price()),
        *(2 * 1500 + 160, 2 * 1500 + 160, 16, 16),
    ),
    "tools whose descriptions the vendor has": (
        *(call(SAID | {"tools": [*TOOLS, COMPUTER, BASH]}, MESSAGES, body_bytes=500, output_cap=16), price()),
        *(2 * 3500 + 160, 2 * 3500 + 160, 16, 16),
    ),
    "a picture is the model's whole input": (
        *(call(SEEN, body_bytes=500, output_cap=16), price(**SIZED)),
        *(256_160, 256_160, 16, 16),
    ),
    "text above the model's input": (
        *(call(SAID, body_bytes=10**6, output_cap=16), price(**SIZED)),
        *(256_160, 256_160, 16, 16),
    ),
    "prompts of a list have an input each": (
        *(call({"prompt": ["a", "b"]}, COMPLETIONS, body_bytes=10**6, output_cap=16, answers=2), price(**SIZED)),
        *(2_000_320, 2_000_320, 16, 16),
    ),
    "a thinking budget": (
        *(call(SAID | {"thinking": {"type": "enabled", "budget_tokens": 2000}}, MESSAGES, body_bytes=500), price()),
        *(1000 + 20_160, 82_920, 2016, 8192),
    ),
    "a thinking budget above the assumed output": (
        *(call(SAID | {"thinking": {"budget_tokens": 9000}}, MESSAGES, body_bytes=500), price()),
        *(91_160, 91_160, 9016, 9016),
    ),
    "a thinking budget above the cap": (
        *(call(SAID | {"thinking": {"budget_tokens": 9000}}, MESSAGES, body_bytes=500, output_cap=50), price()),
        *(1500, 1500, 50, 50),
    ),
    "thinking without a budget": (
        *(call(SAID | {"thinking": {"type": "adaptive"}}, MESSAGES, body_bytes=500, output_cap=50), price()),
        *(1160, 1500, 16, 50),
    ),
    "calls of the vendor's tools, whose results are read": (
        *(call(SAID | {"tools": [SEARCH]}, MESSAGES, body_bytes=500, output_cap=16),),
        *(price(per_server_tool_call=Decimal("0.01"), **SIZED), 4 * 256_000 + 30_160, 4 * 256_000 + 30_160, 16, 16),
    ),
    "stored state": (
        *(call({"input": "x", "previous_response_id": "r"}, RESPONSES, body_bytes=50, output_cap=16), price(**SIZED)),
        *(256_160, 256_160, 16, 16),
    ),
    "a stored item": (
        *(call({"input": [{"id": "msg_1"}]}, RESPONSES, body_bytes=50, output_cap=16), price(**SIZED)),
        *(256_160, 256_160, 16, 16),
    ),
    "a stored prompt, which may have tools": (
        *(call({"prompt": {"id": "p"}, "max_tool_calls": 1}, RESPONSES, body_bytes=50, output_cap=16), price(**SIZED)),
        *(2 * 256_000 + 160, 2 * 256_000 + 160, 16, 16),
    ),
    "no stored state": (
        *(call({"input": [{"role": "user", "content": "x"}]}, RESPONSES, body_bytes=50, output_cap=16), price()),
        *(260, 260, 16, 16),
    ),
    "prompts of a list behind a number": (
        *(call({"prompt": [1, "a", "b"]}, COMPLETIONS, body_bytes=50, output_cap=16), price()),
        *(100 + 3 * 160, 100 + 3 * 160, 16, 16),
    ),
    "prompts as embeddings": (
        *(call({"prompt_embeds": ["a", "b"]}, COMPLETIONS, body_bytes=50, output_cap=16), price()),
        *(100 + 3 * 160, 100 + 3 * 160, 16, 16),
    ),
    "answers by another name": (
        *(call(SAID | {"num_return_sequences": 5}, body_bytes=50, output_cap=16), price()),
        *(100 + 5 * 160, 100 + 5 * 160, 16, 16),
    ),
    "a prediction, which is paid where it is wrong": (
        *(call(SAID | {"prediction": {"type": "content", "content": "x"}}, body_bytes=50, output_cap=16), price()),
        *(100 + 500 + 160, 100 + 500 + 160, 16, 16),
    ),
    "a budget of reasoning": (
        *(call(SAID | {"reasoning": {"max_tokens": 2000}}, body_bytes=500, output_cap=4000), price()),
        *(1000 + 20_160, 1000 + 40_000, 2016, 4000),
    ),
    "a longer context than the model's usual one": (
        *(call(SAID, MESSAGES, body_bytes=10**6, output_cap=16, incoming=LONG_CONTEXT), price(**SIZED)),
        *(2_000_160, 2_000_160, 16, 16),
    ),
    "a picture by a longer context": (
        *(call(SEEN | {"betas": ["context-1m-2025-08-07"]}, MESSAGES, body_bytes=500, output_cap=16),),
        *(price(**SIZED), 2_100_160, 2_100_160, 16, 16),
    ),
    "pictures that are shown before they are finished": (
        *(call({"prompt": "cat", "partial_images": 3}, GENERATIONS, body_bytes=50), price(**SIZED)),
        *(43_100, 43_100, 4000, 4000),
    ),
    "a picture by a URL in embeddings": (
        *(call({"input": [{"image": "https://x.test"}, "a"]}, "/v1/embeddings", body_bytes=50), price(**SIZED)),
        *(2 * 256_000 + 100, 2 * 256_000 + 100, 0, 0),
    ),
    "a recording by a URL in JSON": (
        *(call({"file": "https://x.test/3h.mp3"}, "/v1/audio/transcriptions", body_bytes=50), price(**SIZED)),
        *(256_100 + 40_000, 256_100 + 40_000, 4000, 4000),
    ),
    "documents in an object": (
        *(call({"query": "q", "documents": {"content": [{"text": "a"}] * 4}}, "/v1/rerank", body_bytes=50), price()),
        *(400, 400, 0, 0),
    ),
    "embeddings": (call({"input": "x"}, "/v1/embeddings", body_bytes=50), price(), 100, 100, 0, 0),
    "a reranking reads its query with each document": (
        *(call({"query": "q", "documents": ["a", "b", "c"]}, "/v1/rerank", body_bytes=50), price()),
        *(300, 300, 0, 0),
    ),
    "a form": (
        *(call({}, "/v1/audio/transcriptions", body_bytes=0, upload=FORM), price(**SIZED)),
        *(296_000, 296_000, 4000, 4000),
    ),
    "pictures, which have no cap": (
        *(call({"prompt": "cat", "n": 2}, "/v1/images/generations", body_bytes=50, answers=2), price(**SIZED)),
        *(80_100, 80_100, 4000, 4000),
    ),
    "long context": (
        *(call(SAID, body_bytes=500, output_cap=16), price(long_context=LongContext(499, tokens(4, 15)))),
        *(2240, 2240, 16, 16),
    ),
    "just no long context": (
        *(call(SAID, body_bytes=500, output_cap=16), price(long_context=LongContext(500, tokens(4, 15)))),
        *(1160, 1160, 16, 16),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bound_is_what_is_worked_out_by_hand(name: str) -> None:
    question, its_price, least, whole, least_cap, cap = CASES[name]
    rates = dearest_rates([its_price])
    bound = cost_bound(question, rates, 8192)
    assert isinstance(bound, CostBound)
    assert (bound.least_cap, bound.cap) == (least_cap, cap)
    assert (bound.least_picos, bound.whole_picos) == (least * 10**6, whole * 10**6)
    if question.upload is None:
        assert cost_bound(question, rates, 8192, most_input(question.json, len(question.body), None)) == bound


def said_by(part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


TEXTS: list[tuple[dict[str, Any], str]] = [
    (
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "a"}]},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}], "refusal": None, "annotations": []},
                {"role": "tool", "tool_call_id": "1", "content": "x", "name": "f"},
            ]
        },
        CHAT,
    ),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, MESSAGES),
    ({"input": [{"type": "reasoning", "id": "rs_1", "encrypted_content": "x", "summary": []}]}, RESPONSES),
    ({"input": [{"type": "function_call", "id": "fc_1", "arguments": "{}"}, {"role": "user"}]}, RESPONSES),
    (SAID | {"chat_template_kwargs": {"enable_thinking": False}, "metadata": {"n": "3"}}, CHAT),
    (SAID | {"response_format": {"type": "json_schema", "n": 1}, "logit_bias": {}}, CHAT),
    ({"input": [[1, 2], [3]]}, "/v1/embeddings"),
    ({"prompt": [[1, 2], [3]]}, COMPLETIONS),
    ({"query": "q", "documents": [{"title": "a", "url": "b"}]}, "/v1/rerank"),
]


@pytest.mark.parametrize(("body", "path"), TEXTS)
def test_text_of_stock_clients_needs_no_bound_of_the_model(body: dict[str, Any], path: str) -> None:
    bound = cost_bound(call(body, path, body_bytes=50, output_cap=16), dearest_rates([price()]), 8192)
    assert isinstance(bound, CostBound)
    assert bound.input_tokens == 50


NO_INPUT = "max_input_tokens"
NO_OUTPUT = "max_output_tokens"


@pytest.mark.parametrize(
    ("question", "its_price", "missing"),
    [
        (call(SEEN), price(), NO_INPUT),
        (call(said_by({"type": "document_url", "document_url": "https://x.test"})), price(), NO_INPUT),
        (call(said_by({"video_clip": "https://x.test"})), price(), NO_INPUT),
        (call({"messages": [{"role": "user", "content": {"type": "x_url", "x_url": "https://x"}}]}), price(), NO_INPUT),
        (call({"messages": [{"role": "user", "content": "x", "images": ["https://x"]}]}), price(), NO_INPUT),
        (call({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}, RESPONSES), price(), NO_INPUT),
        (call({"input": [{"type": "web_search_call", "id": "ws_1"}]}, RESPONSES), price(), NO_INPUT),
        (call(SAID | {"files": [{"id": "file_1"}]}), price(), NO_INPUT),
        (call(SAID | {"chat_template": "{% for i in range(10**6) %}x {% endfor %}"}), price(), NO_INPUT),
        (call(SAID | {"chat_template_kwargs": {"chat_template": "x"}}), price(), NO_INPUT),
        (call({"url": "https://x.test"}, "/v1/audio/translations"), price(max_output_tokens=1), NO_INPUT),
        (call({"prompt": "x", "image_url": "https://x"}, GENERATIONS), price(max_output_tokens=1), NO_INPUT),
        (call({"input": [{"image": "https://x"}]}, "/v1/embeddings"), price(), NO_INPUT),
        (call({"input": ["a", ["b", {"image": "https://x"}]]}, "/v1/embeddings"), price(), NO_INPUT),
        (call(SAID | {"extra_body": {"max_tokens": 10**6}}), price(**SIZED), "extra_body.max_tokens"),
        (call(SAID | {"generationConfig": {"candidateCount": 9}}), price(), "generationConfig.candidateCount"),
        (call(SAID | {"extra_body": {"google": {"maxOutputTokens": 9}}}), price(**SIZED), "google.maxOutputTokens"),
        (call(SAID | {"num_return_sequences": "9"}), price(), "num_return_sequences"),
        (call(SEEN), price(max_output_tokens=1), NO_INPUT),
        (call({"input": "x", "conversation": "c"}, RESPONSES), price(), NO_INPUT),
        (call({}, "/v1/audio/transcriptions", upload=FORM), price(), NO_INPUT),
        (call({}, "/v1/audio/transcriptions", upload=FORM), price(max_input_tokens=1), NO_OUTPUT),
        (call({"input": "x"}, "/v1/audio/speech"), price(max_input_tokens=1), NO_OUTPUT),
        (call({"prompt": "x"}, "/v1/images/generations"), price(), NO_OUTPUT),
        (call(SAID | {"tools": [SEARCH]}, MESSAGES), price(), NO_INPUT),
        (call(SAID | {"tools": [{"type": "web_search"}]}, RESPONSES), price(**SIZED), "max_tool_calls"),
        (call(SAID | {"tools": [{"type": "web_search"}]}, MESSAGES), price(**SIZED), "tools.0.max_uses"),
    ],
)
def test_call_without_a_bound_says_what_is_missing(question: FakeCall, its_price: Price, missing: str) -> None:
    bound = cost_bound(question, dearest_rates([its_price]), 8192)
    assert isinstance(bound, Unbounded)
    assert missing in bound.missing


def test_picture_as_large_as_its_figure_is_still_a_picture() -> None:
    """A picture with as many bytes as its figure looks like text in the sum of `most_input`: it is no cheaper then."""
    figure = call_bound.PICTURE_TOKENS
    data = "data:image/png;base64," + "A" * (figure - 22)
    question = call({"messages": [{"content": [{"type": "image_url", "image_url": {"url": data}}]}]}, output_cap=16)
    most_tokens = most_input(question.json, len(question.body), None)
    assert most_tokens == len(question.body)
    bound = cost_bound(question, dearest_rates([price(**SIZED)]), 8192, most_tokens)
    assert isinstance(bound, CostBound)
    assert units_of_picos(bound.fixed) // bound.parts_per_pico >= figure * 2 * A_MILLIONTH


@pytest.mark.parametrize(
    ("picos", "cap"),
    [
        (0, 16),
        (1160 * 10**6, 16),
        (1170 * 10**6 - 1, 16),
        (1170 * 10**6, 17),
        (1999_999_999, 99),
        (2000 * 10**6, 100),
        (10**30, 100),
    ],
)
def test_grant_is_the_largest_cap_that_fits(picos: int, cap: int) -> None:
    assert CostBound(1000 * A_MILLIONTH, 10 * A_MILLIONTH, 16, 100).cap_within(picos) == cap


def test_output_without_a_price_needs_no_lower_cap() -> None:
    assert CostBound(1000, 0, 16, 100).cap_within(0) == 100


def test_reservation_in_units_covers_what_it_was_made_for() -> None:
    assert [units_of_picos(picos_of(units)) for units in (0, 1, 10**10, 10**10 + 1)] == [0, 10**10, 10**10, 2 * 10**10]


def test_amounts_are_rounded_up_to_the_unit_of_reservations() -> None:
    bound = CostBound(fixed=1, per_cap_token=1, least_cap=16, cap=10**10)
    assert (bound.least_picos, bound.whole_picos) == (1, 2)


AMOUNTS = st.decimals(0, 1000, places=6) | st.just(Decimal(0))
COUNTS = st.integers(0, 5000)


@st.composite
def token_price_sets(draw: st.DrawFn) -> TokenPrices:
    return TokenPrices(*draw(st.lists(AMOUNTS, min_size=9, max_size=9)))


@st.composite
def prices(draw: st.DrawFn) -> tuple[Price, ...]:
    """Prices that follow one another at midnight."""
    multipliers = st.decimals(0, 1000, places=4)
    return tuple(
        Price(
            slug="acme/a",
            valid_from_ms=day * DAY_MS,
            currency="EUR",
            tokens=draw(token_price_sets()),
            per_call=draw(AMOUNTS),
            per_server_tool_call=draw(AMOUNTS),
            long_context=draw(st.none() | st.builds(LongContext, COUNTS, token_price_sets())),
            service_tiers=tuple(draw(st.dictionaries(st.sampled_from(["flex", "priority"]), multipliers)).items()),
            max_input_tokens=draw(st.integers(1, 5000)),
            max_output_tokens=draw(st.none() | st.integers(1, 5000)),
        )
        for day in range(draw(st.integers(1, 3)))
    )


@dataclass
class Asked:
    """A call, the moments of its admission and its deadline, and the largest figures of its bill."""

    call: FakeCall
    from_ms: int
    until_ms: int
    input: int
    tool_calls: int


@st.composite
def asked_calls(draw: st.DrawFn, dated: tuple[Price, ...]) -> Asked:
    from_ms = draw(st.integers(0, 3 * DAY_MS))
    until_ms = from_ms + draw(st.integers(0, 2 * DAY_MS))
    holding = [
        each
        for number, each in enumerate(dated)
        if each.valid_from_ms <= until_ms and (number + 1 == len(dated) or dated[number + 1].valid_from_ms > from_ms)
    ]
    most = max(each.max_input_tokens or 0 for each in holding)
    body_bytes = draw(st.integers(2, 6000))
    cap = draw(st.none() | st.integers(1, 6000))
    answers = draw(st.integers(1, 4))
    json, path, input_tokens, tool_calls = draw(
        st.sampled_from(
            [
                (SAID, CHAT, min(body_bytes, most), 0),
                ({"prompt": "x"}, COMPLETIONS, body_bytes, 0),
                (SAID | {"tools": TOOLS}, CHAT, min(body_bytes + TOOLS_TOKENS, most), 0),
                (SEEN, CHAT, most, 0),
                (SAID | {"tools": [SEARCH]}, MESSAGES, most, 3),
            ]
        )
    )
    fake = call(json, path, body_bytes=body_bytes, output_cap=cap, answers=answers)
    return Asked(fake, from_ms, until_ms, input_tokens, tool_calls)


@given(st.data())
def test_no_bill_within_the_figures_costs_more_than_the_bound(data: st.DataObject) -> None:
    dated = data.draw(prices())
    question = data.draw(asked_calls(dated))
    slug_prices = SlugPrices(PriceRow("acme/a", "ws", dated))
    rates = slug_prices.dearest(question.from_ms, question.until_ms, "EUR")
    assert rates is not None
    bound = cost_bound(question.call, rates, 1000)
    assert isinstance(bound, CostBound)
    granted = data.draw(st.integers(bound.least_picos, bound.whole_picos))
    cap = bound.cap_within(granted)
    assert min(LEAST_CAP, bound.cap) <= cap <= bound.cap
    bill_tokens = Tokens(
        input=data.draw(st.integers(0, question.input)),
        output=data.draw(st.integers(0, cap * question.call.answers)),
        cached_input=data.draw(COUNTS),
    )
    details = Details(
        cache_write=data.draw(COUNTS),
        cache_write_1h=data.draw(COUNTS),
        audio_input=data.draw(COUNTS),
        audio_output=data.draw(COUNTS),
        image_input=data.draw(COUNTS),
        image_output=data.draw(COUNTS),
        server_tool_calls=data.draw(st.integers(0, question.tool_calls)),
    )
    tier = data.draw(st.sampled_from(["", "flex", "priority", "batch"]))
    ended_ms = data.draw(st.integers(question.from_ms, question.until_ms))
    tariff = slug_prices.tariff(ended_ms, tier, bill_tokens.input)
    assert tariff is not None
    assert picos_of(tariff.rates.cost(cost_figures(bill_tokens, details))) <= granted


def test_paths_with_a_cap_are_those_that_bodies_are_edited_for() -> None:
    assert {CHAT, COMPLETIONS, MESSAGES, RESPONSES_PATH} == CAPPED_PATHS
