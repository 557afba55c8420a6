"""Streams of the servers that are called most, in the form in which each sends them. A row's comment names the source.

The vendors' texts are shortened; members, their order and their places are theirs.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.failures import last_word
from tests.upstream.oddities.fidelity import BILLED, calls, chat_whole, seen_call, whole
from tests.upstream.oddities.labels import TEXT
from tests.upstream.oddities.row import (
    JSON,
    Counted,
    Json,
    Oddity,
    Seen,
    chat_chunk,
    chat_text,
    chat_usage,
    frames,
    message_text,
    response_text,
    sends,
)

SAID = "overloaded"
BEGUN = chat_text("Hello", finish=None)
DONE = frames("[DONE]")
USAGE: Json = chat_usage()["usage"]
SAFE = {"hate": {"filtered": False, "severity": "safe"}}
ASKS_TO_THINK: Json = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
FAILURES: dict[str, bytes] = {
    # vllm/entrypoints/serve: create_streaming_error_response
    "vLLM": frames({"error": {"message": SAID, "type": "InternalServerError", "param": None, "code": 500}}) + DONE,
    # sglang/srt/entrypoints/openai/serving_base.py: create_streaming_error_response
    "SGLang": frames(
        {"error": {"object": "error", "message": SAID, "type": "InternalServerError", "param": None, "code": 500}}
    )
    + DONE,
    # ggml-org/llama.cpp#16109
    "llama.cpp": frames({"error": {"code": 500, "message": SAID, "type": "server_error"}}) + DONE,
    "llama.cpp until September 2025": b'error: {"code":500,"message":"overloaded","type":"server_error"}\n\n' + DONE,
    # huggingface/text-generation-inference#2668
    "TGI": frames({"error": {"message": SAID, "http_status_code": 500}}),
    "TGI 2": frames({"error": SAID, "error_type": "generation"}),
    # BerriAI/litellm#5175, #39748
    "LiteLLM": frames({"error": {"message": SAID, "type": "None", "param": "None", "code": "500"}}),
    # OpenRouter's page on streaming; diegosouzapw/OmniRoute#8210
    "OpenRouter": frames(
        chat_chunk({"content": ""}, "error", provider="X", error={"code": "server_error", "message": SAID})
    ),
    "OpenRouter, without choices": frames(chat_chunk(provider="X", error={"code": 502, "message": SAID}, choices=[]))
    + DONE,
    "a named error event": b'event: error\ndata: {"error":{"message":"overloaded"}}\n\n',
}


FLAT: Json = {"object": "error", "message": SAID, "type": "BadRequestError", "param": None, "code": 400}
ERRORS: dict[str, tuple[int, Any]] = {
    "vLLM": (400, {"error": {"message": SAID, "type": "BadRequestError", "param": None, "code": 400}}),
    # until 0.10; sglang/srt/entrypoints/openai/serving_base.py: create_error_response
    "vLLM, older, and SGLang": (400, FLAT),
    "llama.cpp": (
        400,
        {
            "error": {
                "code": 400,
                "message": SAID,
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 9,
                "n_ctx": 8,
            }
        },
    ),
    # ollama/ollama openai/openai.go: NewError
    "Ollama": (400, {"error": {"message": SAID, "type": "invalid_request_error", "param": None, "code": None}}),
    # assafelovic/gpt-researcher#1556
    "LM Studio, no model loaded": (400, {"error": SAID}),
    "TGI": (422, {"error": SAID, "error_type": "validation"}),
    "LiteLLM": (400, {"error": {"message": SAID, "type": "invalid_request_error", "param": None, "code": "400"}}),
    "OpenRouter": (400, {"error": {"message": SAID, "code": 400, "metadata": {"provider_name": "X"}}, "user_id": "u"}),
    "Mistral": (400, FLAT | {"type": "invalid_request_error", "code": "1500"}),
    "Mistral, a member is wrong": (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "x"], "msg": SAID}]}),
    # google-gemini/gemini-cli#7507
    "Gemini": (400, [{"error": {"code": 400, "message": SAID, "status": "INVALID_ARGUMENT"}}]),
    "Azure": (
        400,
        {"error": {"message": SAID, "type": None, "param": "prompt", "code": "content_filter", "status": 400}},
    ),
}


def failures() -> Iterator[Oddity]:
    for server, event in FAILURES.items():
        views = dict(last_word(CHAT_COMPLETIONS, "Hello"))
        if event.startswith(b"error:"):  # clients of Chat Completions do not read this field
            views[CHAT_COMPLETIONS] = Seen(text="Hello", has=(SAID.encode(),))
        yield Oddity(
            name=f"{server}: fails amid the text",
            sends=sends(b": keep-alive\n\n", frames(*BEGUN), event),
            views=views,
            billed=Counted(1),
            logged=502,
        )


def errors() -> Iterator[Oddity]:
    """Failures whose message each caller reads, in an error object where the server has one in any form."""
    for server, (status, body) in ERRORS.items():
        is_text = isinstance(body, dict) and isinstance(body.get("error", body.get("detail")), str | list)
        forms = () if is_text else (b'"error":{', b'"message":"overloaded"')
        yield Oddity(
            name=f"{server}: an error of status {status}",
            sends=sends(orjson.dumps(body), label=JSON, status=status),
            views={
                caller: Seen(status=status, ended="failed", has=(SAID.encode(), *forms, *more))
                for caller, more in {
                    CHAT_COMPLETIONS: (),
                    MESSAGES: () if is_text else (b'"type":"error"',),
                    RESPONSES: (),
                }.items()
            },
            billed=Tokens(),
        )


def stream(server: str, *events: Json | str, billed: Tokens | Counted = BILLED) -> Oddity:
    return Oddity(name=server, sends=sends(*(frames(event) for event in events)), views=TEXT, billed=billed)


def streams() -> Iterator[Oddity]:
    words = [chat_chunk({"content": word}, usage=None) for word in ("Hello", " there")]
    first = chat_chunk({"role": "assistant", "content": ""}, usage=None)
    finish = chat_chunk({"content": ""}, "stop")
    # DeepSeek's API reference; its figures of the cache stand beside the others
    cached = USAGE | {"prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 4}
    yield stream(
        "DeepSeek: null usage in each chunk, the usage beside the finish",
        first,
        *words,
        finish | {"usage": cached},
        "[DONE]",
        billed=Tokens(input=12, output=5, cached_input=8),
    )
    # earendil-works/pi#2017
    moonshot = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}
    yield stream(
        "Moonshot: the usage in the finish's choice", first, *words, finish | {"choices": [moonshot]}, "[DONE]"
    )
    # vercel/ai#1651, Portkey-AI/gateway#1338
    groq = finish | {"x_groq": {"id": "req_1", "usage": {"queue_time": 0.1} | USAGE}}
    yield stream("Groq: the usage in x_groq", first, *words, groq, "[DONE]")
    yield stream("Groq: the usage in x_groq and in a chunk of its own", first, *words, groq, chat_usage(), "[DONE]")
    # speakeasy-api/gram#921
    empty = chat_chunk({"role": "assistant", "content": ""}, usage=USAGE | {"cost": 0.01})
    yield stream("OpenRouter: the usage beside an empty delta", first, *words, finish, empty, "[DONE]")
    # Gemini's OpenAI compatibility; vLLM with continuous_usage_stats
    grown = [
        chunk | {"usage": USAGE | {"completion_tokens": number, "total_tokens": 12 + number}}
        for number, chunk in enumerate((first, *words))
    ]
    yield stream("Gemini: usage in each chunk", *grown, finish | {"usage": USAGE}, "[DONE]")
    # Mistral's API reference: the usage comes without being asked for
    yield stream("Mistral: the usage beside the finish", first, *words, finish | {"usage": USAGE}, "[DONE]")
    # microsoft/autogen#6465, langchain-ai/langchain#18977
    prompt = chat_chunk(prompt_filter_results=[{"prompt_index": 0, "content_filter_results": SAFE}])
    offsets = {"check_offset": 44, "start_offset": 44, "end_offset": 198}
    note = {"index": 0, "finish_reason": None, "content_filter_results": SAFE, "content_filter_offsets": offsets}
    nameless = {"id": "", "object": "", "created": 0, "model": "", "choices": [note], "usage": None}
    yield stream(
        "Azure: chunks of the content filter",
        prompt | {"id": "", "object": "", "model": "", "choices": []},
        first,
        *words,
        finish,
        nameless,
        chat_usage(),
        "[DONE]",
    )


def endings() -> Iterator[Oddity]:
    # ollama/ollama middleware/openai.go: an error amid the stream becomes a chunk that says nothing
    empty_chunk = chat_chunk({"role": "assistant", "content": ""})
    yield Oddity(
        name="Ollama: fails amid the text, and says nothing of it",
        sends=sends(frames(*BEGUN, empty_chunk)),
        views=Seen(text="Hello", ended="cut"),
        billed=Counted(1),
    )
    # vllm/entrypoints/anthropic/serving.py; BerriAI/litellm#40243
    for server, target_dialect, events in (
        ("vLLM", MESSAGES, message_text("Hello", " there")),
        ("LiteLLM", RESPONSES, response_text("Hello", " there")),
    ):
        yield Oddity(
            name=f"{server}: [DONE] behind the last event of {target_dialect}",
            spoken=target_dialect,
            sends=sends(frames(*events), DONE),
            views=TEXT,
            billed=BILLED,
        )
    # ggml-org/llama.cpp, as darshi1337/apogee#139 found it
    yield Oddity(
        name="llama.cpp: no blank line behind [DONE]",
        sends=sends(frames(*chat_text("Hello", " there"), chat_usage()) + b"data: [DONE]\n"),
        views=TEXT,
        billed=BILLED,
    )


def deltas() -> Iterator[Oddity]:
    def entry(**members: object) -> Json:
        return {name: value for name, value in members.items() if value is not None}

    def chunk(*entries: Json) -> Json:
        return chat_chunk({"tool_calls": [*entries]})

    start = entry(index=0, id="c1", type="function", function={"name": "weather", "arguments": ""})
    # lmstudio-ai/lmstudio-bug-tracker#649; Qwen's servers
    for server, id, name in (("LM Studio", None, ""), ("Qwen", "", ""), ("Qwen, with nulls", "", None)):
        rest = [
            chunk(entry(index=0, id=id, type="function", function={"name": name, "arguments": piece}))
            for piece in ('{"a":', "1}")
        ]
        yield Oddity(
            name=f"{server}: later deltas of a call have an empty name",
            sends=calls(chunk(start), *rest),
            views=seen_call('{"a":', "1}"),
            billed=BILLED,
        )
    # open-webui/computer#224, noho/dayu-agent#82
    both = [
        entry(id=f"c{number}", type="function", function={"name": name, "arguments": f'{{"n":{number}}}'})
        for number, name in enumerate(("weather", "clock"))
    ]
    views = {
        caller: Seen(has=(b'"weather"', b'"clock"', b'{\\"n\\":0}', b'{\\"n\\":1}')) for caller in (MESSAGES, RESPONSES)
    }
    for place, chunks in (("in one chunk", [chunk(*both)]), ("in chunks of their own", [chunk(each) for each in both])):
        yield Oddity(
            name=f"Gemini: two calls without an index, {place}", sends=calls(*chunks), views=views, billed=BILLED
        )
    signed = entry(id="c1", type="function", function={"name": "weather", "arguments": '{"a":'})
    signature = chat_chunk({"extra_content": {"google": {"thought_signature": "c2ln"}}})
    yield Oddity(
        name="Gemini: the arguments of a call without an index in pieces, then a signature alone",
        sends=sends(
            frames(
                chunk(signed),
                chunk({"function": {"arguments": "1}"}}),
                signature,
                chat_chunk(finish="stop"),
                chat_usage(),
            ),
            DONE,
        ),
        views=seen_call('{"a":', "1}"),
        billed=BILLED,
    )
    # Mistral: a call is whole in one delta, with the finish beside it
    call = entry(index=0, id="c1", function={"name": "weather", "arguments": '{"a":1}'})
    yield Oddity(
        name="Mistral: a whole call beside the finish and the usage",
        sends=sends(frames(chat_chunk({"content": "", "tool_calls": [call]}, "tool_calls", usage=USAGE)), DONE),
        views=seen_call('{"a":1}'),
        billed=BILLED,
    )


def reasoning() -> Iterator[Oddity]:
    # DeepSeek and vLLM before 0.12: reasoning_content; vLLM since, OpenRouter: reasoning; Mistral: a block of content
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    forms: dict[str, list[Json]] = {
        "DeepSeek": [{"reasoning_content": "Hm.", "content": None}],
        "vLLM": [{"reasoning": "Hm."}],
        "OpenRouter": [
            {
                "content": "",
                "reasoning": "Hm.",
                "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "format": "unknown", "index": 0}],
            }
        ],
        "Mistral": [{"content": [thought]}],
    }
    for server, deltas in forms.items():
        yield Oddity(
            name=f"{server}: reasoning before the text",
            sends=sends(frames(*map(chat_chunk, deltas), *chat_text("Hello", " there"), chat_usage(), "[DONE]")),
            views={MESSAGES: Seen(text="Hello there", has=(b'"thinking":"Hm."',))},
            asks=ASKS_TO_THINK,
            billed=BILLED,
        )
    yield Oddity(
        name="Mistral: reasoning before the text of a whole answer",
        sends=whole(chat_whole({"content": [thought, {"type": "text", "text": "Hello there"}]})),
        stream=False,
        views={MESSAGES: Seen(text="Hello there", has=(b'"thinking":"Hm."',), lacks=(b"x-tollgate-left-out",))},
        asks=ASKS_TO_THINK,
        billed=BILLED,
    )


ROWS = (*failures(), *errors(), *streams(), *endings(), *deltas(), *reasoning())
