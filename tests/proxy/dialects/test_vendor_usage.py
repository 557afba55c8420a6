"""The usage reports of vendors, each in its words: what they are read as, and what they cost by hand.

The price is 1 for a million tokens of input, 0.1 cached, 1.25 written to a cache and 2 for an hour, 10 of sound and 3
of pictures, 4 of output, 20 of sound and 8 of pictures, and 0.01 for a call of a server tool; `flex` halves tokens.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from policy.billing import Details, Tokens
from policy.prices import Price, cost_figures, token_prices
from proxy.dialects.usage.meters import MessagesMeter, OpenAiMeter, ResponsesMeter, UsageMeter

Json = dict[str, Any]

PRICE = Price(
    slug="a/b",
    valid_from_ms=0,
    currency="USD",
    tokens=token_prices(
        Decimal(1),
        Decimal(4),
        cached_input=Decimal("0.1"),
        cache_write=Decimal("1.25"),
        cache_write_1h=Decimal(2),
        audio_input=Decimal(10),
        image_input=Decimal(3),
        audio_output=Decimal(20),
        image_output=Decimal(8),
    ),
    per_server_tool_call=Decimal("0.01"),
    service_tiers=(("flex", Decimal("0.5")),),
)


@dataclass(frozen=True, slots=True)
class Form:
    """A vendor's report. `microcost`: the cost in millionths of the currency, worked out in the comment beside it."""

    vendor: str
    answer: Json
    tokens: Tokens
    details: Details
    microcost: str


def chat(prompt: int, output: int, total: int | None = None, /, **members: Any) -> Json:
    total_tokens = prompt + output if total is None else total
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": total_tokens} | members


CHAT_FORMS = [
    Form(
        "OpenAI: an ordinary call",
        {
            "service_tier": "default",
            "usage": chat(
                100,
                50,
                prompt_tokens_details={"cached_tokens": 40, "audio_tokens": 0},
                completion_tokens_details={
                    **{"reasoning_tokens": 0, "audio_tokens": 0},
                    **{"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
                },
            ),
        },
        Tokens(input=100, output=50, cached_input=40),
        Details(service_tier="default"),
        "264",  # 60 × 1 + 40 × 0.1 + 50 × 4
    ),
    Form(
        "OpenAI: reasoning is part of the output",
        {
            "service_tier": "flex",
            "usage": chat(
                100,
                50,
                prompt_tokens_details={"cached_tokens": 0, "audio_tokens": 0},
                completion_tokens_details={"reasoning_tokens": 30, "audio_tokens": 0},
            ),
        },
        Tokens(input=100, output=50),
        Details(reasoning=30, service_tier="flex"),
        "150",  # (100 × 1 + 50 × 4) × 0.5
    ),
    Form(
        "OpenAI: sound in both directions",
        {
            "usage": chat(
                100,
                50,
                prompt_tokens_details={"cached_tokens": 0, "audio_tokens": 80, "text_tokens": 20},
                completion_tokens_details={"reasoning_tokens": 0, "audio_tokens": 35, "text_tokens": 15},
            )
        },
        Tokens(input=100, output=50),
        Details(audio_input=80, audio_output=35),
        "1580",  # 20 × 1 + 80 × 10 + 15 × 4 + 35 × 20
    ),
    Form(
        "OpenRouter: cache writes and searches",
        {
            "usage": chat(
                100,
                10,
                prompt_tokens_details={"cached_tokens": 20, "cache_write_tokens": 40, "audio_tokens": 0},
                completion_tokens_details={"reasoning_tokens": 0, "image_tokens": 4},
                server_tool_use={"web_search_requests": 2},
                cost=0.01,
            )
        },
        Tokens(input=100, output=10, cached_input=20),
        Details(cache_write=40, image_output=4, server_tool_calls=2),
        "20148",  # 40 × 1 + 20 × 0.1 + 40 × 1.25 + 6 × 4 + 4 × 8 + 2 × 10000
    ),
    Form(
        "Qwen: cache writes in the details, in the words of Messages",
        {
            "usage": chat(
                100,
                10,
                prompt_tokens_details={
                    "cached_tokens": 0,
                    "cache_type": "ephemeral",
                    "cache_creation_input_tokens": 60,
                    "cache_creation": {"ephemeral_5m_input_tokens": 60},
                },
            )
        },
        Tokens(input=100, output=10),
        Details(cache_write=60),
        "155",  # 40 × 1 + 60 × 1.25 + 10 × 4
    ),
    Form(
        "LiteLLM: the words of Messages beside those of Chat Completions",
        {
            "usage": chat(
                100,
                10,
                prompt_tokens_details={
                    "cached_tokens": 30,
                    "cache_creation_tokens": 50,
                    "cache_creation_token_details": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 10},
                },
                cache_read_input_tokens=30,
                cache_creation_input_tokens=50,
            )
        },
        Tokens(input=100, output=10, cached_input=30),
        Details(cache_write=50, cache_write_1h=10),
        "133",  # 20 × 1 + 30 × 0.1 + 40 × 1.25 + 10 × 2 + 10 × 4
    ),
    Form(
        "Databricks: the words of Messages alone",
        {"usage": chat(100, 10, cache_read_input_tokens=30, cache_creation_input_tokens=50)},
        Tokens(input=100, output=10, cached_input=30),
        Details(cache_write=50),
        "125.5",  # 20 × 1 + 30 × 0.1 + 50 × 1.25 + 10 × 4
    ),
    Form(
        "DeepSeek",
        {
            "usage": chat(
                100,
                50,
                prompt_cache_hit_tokens=64,
                prompt_cache_miss_tokens=36,
                completion_tokens_details={"reasoning_tokens": 20},
            )
        },
        Tokens(input=100, output=50, cached_input=64),
        Details(reasoning=20),
        "242.4",  # 36 × 1 + 64 × 0.1 + 50 × 4
    ),
    Form(
        "Moonshot: cached input beside the figures, in a choice of the last chunk",
        {"choices": [{"index": 0, "delta": {}, "usage": chat(100, 50, cached_tokens=64)}]},
        Tokens(input=100, output=50, cached_input=64),
        Details(),
        "242.4",  # 36 × 1 + 64 × 0.1 + 50 × 4
    ),
    Form(
        "Groq: the usage is in x_groq",
        {"x_groq": {"id": "req_1", "service_tier": "flex", "usage": chat(100, 50, total_time=0.5)}},
        Tokens(input=100, output=50),
        Details(service_tier="flex"),
        "150",  # (100 × 1 + 50 × 4) × 0.5
    ),
    Form(
        "Groq: the tier is at the top",
        {"service_tier": "on_demand", "x_groq": {"id": "req_1"}, "usage": chat(100, 50, queue_time=0.1)},
        Tokens(input=100, output=50),
        Details(service_tier="on_demand"),
        "300",  # 100 × 1 + 50 × 4
    ),
    Form(
        "Mistral: bare figures, and a length of sound that is no figure",
        {"usage": chat(100, 50, prompt_audio_seconds=12, num_cached_tokens=0, prompt_tokens_details=None)},
        Tokens(input=100, output=50),
        Details(),
        "300",  # 100 × 1 + 50 × 4
    ),
    Form(
        "xAI: reasoning is beside the output, pictures and text are apart",
        {
            "usage": chat(
                100,
                9,
                203,
                prompt_tokens_details={"text_tokens": 60, "audio_tokens": 0, "image_tokens": 40, "cached_tokens": 70},
                completion_tokens_details={"reasoning_tokens": 94, "audio_tokens": 0},
                num_sources_used=3,
                num_server_side_tools_used=2,
            )
        },
        Tokens(input=100, output=103, cached_input=70),
        Details(reasoning=94, image_input=40, server_tool_calls=2),
        "20509",  # 70 × 0.1 + 30 × 3 + 103 × 4 + 2 × 10000: 60 of the cached tokens are text, 10 are pictures
    ),
    Form(
        "Vertex: reasoning beside the output is smaller than it",
        {"usage": chat(100, 50, 170, completion_tokens_details={"reasoning_tokens": 20})},
        Tokens(input=100, output=70),
        Details(reasoning=20),
        "380",  # 100 × 1 + 70 × 4
    ),
    Form(
        "Gemini: only the total tells that the model thought",
        {"usage": chat(20, 198, 623)},
        Tokens(input=20, output=603),
        Details(reasoning=405),
        "2432",  # 20 × 1 + 603 × 4
    ),
    Form(
        "Perplexity: more reasoning than output, and searches",
        {"usage": chat(33, 7163, reasoning_tokens=73327, citation_tokens=20016, num_search_queries=18)},
        Tokens(input=33, output=80490),
        Details(reasoning=73327, server_tool_calls=18),
        "501993",  # 33 × 1 + 80490 × 4 + 18 × 10000
    ),
    Form(
        "a tier in the usage",
        {"service_tier": None, "usage": chat(100, 50, service_tier="flex")},
        Tokens(input=100, output=50),
        Details(service_tier="flex"),
        "150",  # (100 × 1 + 50 × 4) × 0.5
    ),
    Form(
        "malformed details are left out",
        {
            "service_tier": ["flex"],
            "usage": chat(
                100,
                50,
                prompt_tokens_details={"audio_tokens": "80", "image_tokens": -1, "cache_write_tokens": 10.0},
                completion_tokens_details={"reasoning_tokens": True, "audio_tokens": 10**30, "image_tokens": None},
                server_tool_use={"web_search_requests": "2", "web_fetch_requests": 1},
                cache_creation={"ephemeral_5m_input_tokens": {}},
            ),
        },
        Tokens(input=100, output=50),
        Details(server_tool_calls=1),
        "10300",  # 100 × 1 + 50 × 4 + 1 × 10000
    ),
    Form(
        "parts larger than the whole count as all of it",
        {
            "usage": chat(
                100,
                50,
                prompt_tokens_details={"cached_tokens": 90, "cache_write_tokens": 500},
                completion_tokens_details={"audio_tokens": 60},
            )
        },
        Tokens(input=100, output=50, cached_input=90),
        Details(cache_write=500, audio_output=60),
        "1021.5",  # 90 × 0.1 + 10 × 1.25 + 50 × 20
    ),
]

MESSAGES_FORMS = [
    Form(
        "Anthropic: writes for 5 minutes and an hour, tools, tier",
        {
            "usage": {
                "input_tokens": 100,
                "cache_read_input_tokens": 200,
                "cache_creation_input_tokens": 70,
                "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 30},
                "output_tokens": 50,
                "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 1},
                "service_tier": "standard",
            }
        },
        Tokens(input=370, output=50, cached_input=200),
        Details(cache_write=70, cache_write_1h=30, server_tool_calls=3, service_tier="standard"),
        "30430",  # 100 × 1 + 200 × 0.1 + 40 × 1.25 + 30 × 2 + 50 × 4 + 3 × 10000
    ),
    Form(
        "a server that tells writes by their duration alone",
        {
            "usage": {
                "input_tokens": 100,
                "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 30},
                "output_tokens": 50,
            }
        },
        Tokens(input=170, output=50),
        Details(cache_write=70, cache_write_1h=30),
        "410",  # 100 × 1 + 40 × 1.25 + 30 × 2 + 50 × 4
    ),
    Form(
        "thinking is part of the output",
        {
            "usage": {
                "input_tokens": 100,
                "output_tokens": 50,
                "output_tokens_details": {"thinking_tokens": 30},
                "service_tier": "flex",
            }
        },
        Tokens(input=100, output=50),
        Details(reasoning=30, service_tier="flex"),
        "150",  # (100 × 1 + 50 × 4) × 0.5
    ),
]

RESPONSES_FORMS = [
    Form(
        "OpenAI: reasoning, cache writes, a tier, and tools of which each search counts",
        {
            "service_tier": "flex",
            "output": [
                {"type": "reasoning"},
                {"type": "web_search_call", "action": {"type": "search", "query": "a"}},
                {"type": "web_search_call", "action": {"type": "open_page", "url": "b"}},
                {"type": "web_search_call", "action": {"type": "find_in_page", "pattern": "c"}},
                {"type": "file_search_call"},
                {"type": "code_interpreter_call"},
                {"type": "image_generation_call"},
                {"type": "function_call"},
                {"type": "mcp_call"},
                {"type": "computer_call"},
                {"type": ["web_search_call"]},
                "web_search_call",
            ],
            "usage": {
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 40},
                "output_tokens": 50,
                "output_tokens_details": {"reasoning_tokens": 30},
                "total_tokens": 150,
            },
        },
        Tokens(input=100, output=50, cached_input=20),
        Details(cache_write=40, reasoning=30, server_tool_calls=4, service_tier="flex"),
        "40146",  # (40 × 1 + 20 × 0.1 + 40 × 1.25 + 50 × 4) × 0.5 + 4 × 10000
    ),
    Form(
        "xAI: the number of calls, and reasoning beside the output",
        {
            "output": [{"type": "web_search_call", "action": {"type": "search"}}],
            "usage": {
                "input_tokens": 100,
                "output_tokens": 9,
                "output_tokens_details": {"reasoning_tokens": 94},
                "total_tokens": 203,
                "num_server_side_tools_used": 3,
            },
        },
        Tokens(input=100, output=103),
        Details(reasoning=94, server_tool_calls=3),
        "30512",  # 100 × 1 + 103 × 4 + 3 × 10000
    ),
]

PICTURE_FORMS = [
    Form(
        "OpenAI: pictures, whose output is not told apart",
        {
            "usage": {
                "input_tokens": 50,
                "input_tokens_details": {"text_tokens": 10, "image_tokens": 40},
                "output_tokens": 272,
                "total_tokens": 322,
            }
        },
        Tokens(input=50, output=272),
        Details(image_input=40, image_output=272),
        "2306",  # 10 × 1 + 40 × 3 + 272 × 8
    ),
    Form(
        "OpenAI: pictures, whose output is told apart",
        {
            "usage": {
                "input_tokens": 50,
                "input_tokens_details": {"text_tokens": 50, "image_tokens": 0},
                "output_tokens": 272,
                "output_tokens_details": {"text_tokens": 72, "image_tokens": 200},
                "total_tokens": 322,
            }
        },
        Tokens(input=50, output=272),
        Details(image_output=200),
        "1938",  # 50 × 1 + 72 × 4 + 200 × 8
    ),
]

TRANSCRIPT_FORMS = [
    Form(
        "OpenAI: a transcript",
        {
            "usage": {
                "type": "tokens",
                "input_tokens": 14,
                "input_token_details": {"text_tokens": 4, "audio_tokens": 10},
                "output_tokens": 45,
                "total_tokens": 59,
            }
        },
        Tokens(input=14, output=45),
        Details(audio_input=10),
        "284",  # 4 × 1 + 10 × 10 + 45 × 4
    )
]


def check(form: Form, meter: UsageMeter) -> None:
    meter.observe(form.answer)
    assert meter.tokens == form.tokens
    assert meter.details == form.details
    figures = cost_figures(form.tokens, form.details)
    assert PRICE.cost(figures, form.details.service_tier) == Decimal(form.microcost) / 1_000_000


def names(forms: list[Form]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("form", forms, ids=lambda form: form.vendor)


@names(CHAT_FORMS + TRANSCRIPT_FORMS)
def test_report_in_the_words_of_chat_completions_is_read(form: Form) -> None:
    check(form, OpenAiMeter())


@names(MESSAGES_FORMS)
def test_report_in_the_words_of_messages_is_read(form: Form) -> None:
    check(form, MessagesMeter(is_whole=True))


@names(RESPONSES_FORMS)
def test_report_in_the_words_of_responses_is_read(form: Form) -> None:
    check(form, ResponsesMeter())


@names(PICTURE_FORMS)
def test_report_about_pictures_is_read(form: Form) -> None:
    check(form, OpenAiMeter(output_part="image_output"))


def test_messages_stream_merges_the_details_of_its_events() -> None:
    meter = MessagesMeter()
    start = {
        **{"input_tokens": 100, "cache_creation_input_tokens": 70, "output_tokens": 1},
        "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 30},
        "service_tier": "priority",
    }
    meter.observe({"type": "message_start", "message": {"usage": start}})
    assert meter.details == Details(cache_write=70, cache_write_1h=30, service_tier="priority")
    delta = {"input_tokens": 0, "output_tokens": 50, "server_tool_use": {"web_search_requests": 1}}
    meter.observe({"type": "message_delta", "delta": {}, "usage": delta | {"cache_creation_input_tokens": 0}})
    assert meter.tokens == Tokens(input=170, output=50)
    assert meter.details == Details(cache_write=70, cache_write_1h=30, server_tool_calls=1, service_tier="priority")


def test_writes_that_turn_out_to_be_reads_are_no_writes() -> None:
    meter = MessagesMeter()
    start = {"input_tokens": 100, "cache_creation_input_tokens": 70}
    meter.observe({"type": "message_start", "message": {"usage": start}})
    split = {"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 70, "output_tokens": 5}
    meter.observe({"type": "message_delta", "delta": {}, "usage": split})
    assert meter.tokens == Tokens(input=170, output=5, cached_input=70)
    assert meter.details == Details()


def test_rejected_report_withdraws_the_details() -> None:
    meter = OpenAiMeter()
    meter.observe({"service_tier": "flex", "usage": chat(100, 50, completion_tokens_details={"reasoning_tokens": 5})})
    assert meter.details.reasoning == 5
    meter.observe({"service_tier": "flex", "usage": chat(100, -1)})
    assert (meter.tokens, meter.details) == (None, Details())


def test_zeros_after_a_report_wipe_no_detail() -> None:
    meter = OpenAiMeter()
    meter.observe({"service_tier": "flex", "usage": chat(100, 50, completion_tokens_details={"reasoning_tokens": 5})})
    meter.observe({"usage": chat(0, 0, completion_tokens_details={"reasoning_tokens": 0})})
    assert (meter.tokens, meter.details) == (Tokens(input=100, output=50), Details(reasoning=5, service_tier="flex"))


@pytest.mark.parametrize("tier", ["", "x" * 65, "flex\n", 'fl"ex', "flèx", 1, None, {}])
def test_tier_that_no_price_can_have_is_not_recorded(tier: object) -> None:
    meter = OpenAiMeter()
    meter.observe({"service_tier": tier, "usage": chat(100, 50)})
    assert meter.details == Details()
