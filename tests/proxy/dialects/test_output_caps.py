"""The output cap that a spend limit granted: in every body that goes upstream, and nothing else changes."""

from typing import Any

import orjson
import pytest

from policy.endpoints import COMPATIBLE, Target
from proxy.dialects.output_caps import capped_members
from proxy.dialects.registry import Dialects
from proxy.json_text.large_json import parse_with_placeholders
from proxy.json_text.segmented_body import SegmentedBody
from proxy.json_text.sliced_json import AT_ONCE_BYTES, parse_in_slices
from proxy.records.messages import Received
from proxy.time_slices import at_once
from tests.fakes.seals import SEAL_KEYS
from tests.proxy.dialects.samples import (
    CHAT,
    JSON,
    MESSAGES,
    PLATFORM,
    SLUG,
    VENDOR_A,
    VENDOR_B,
    answer_reader,
    build_request,
    read,
    received,
)

RESPONSES = "/v1/responses"
COMPLETIONS = "/v1/completions"
SERVER = Target(COMPATIBLE, secret_id="s", base_url="https://models.test/v1")
USER = {"role": "user", "content": "hi"}
CAP = 50


def capped(raw: bytes, path: str = CHAT, cap: int = CAP) -> Received:
    call = received(raw, path)
    call.granted_cap = cap
    return call


def sent(raw: bytes, target: Target, path: str = CHAT, cap: int = CAP) -> bytes:
    return bytes(build_request(capped(raw, path, cap), target, "k").body)


@pytest.mark.parametrize(
    ("body", "path", "provider", "changed"),
    [
        ({}, CHAT, "VENDOR_B", {"max_completion_tokens": b"50"}),
        ({}, CHAT, COMPATIBLE, {"max_tokens": b"50"}),
        ({}, COMPLETIONS, "VENDOR_B", {"max_tokens": b"50"}),
        ({}, MESSAGES, "VENDOR_A", {"max_tokens": b"50"}),
        ({}, RESPONSES, "VENDOR_B", {"max_output_tokens": b"50"}),
        ({}, "/v1/embeddings", "VENDOR_B", {}),
        ({"max_tokens": 50}, CHAT, "VENDOR_B", {}),
        ({"max_tokens": 51}, CHAT, "VENDOR_B", {"max_tokens": b"50"}),
        ({"max_completion_tokens": 99}, CHAT, COMPATIBLE, {"max_completion_tokens": b"50", "max_tokens": b"50"}),
        ({"max_completion_tokens": 50}, CHAT, COMPATIBLE, {"max_tokens": b"50"}),
        ({"max_completion_tokens": 50, "max_tokens": None}, CHAT, "VENDOR_C", {"max_tokens": b"50"}),
        ({"max_completion_tokens": 50}, CHAT, "VENDOR_B", {}),
        ({"max_tokens": 50, "max_completion_tokens": None}, CHAT, "VENDOR_B", {}),
        ({"max_tokens": 1, "max_completion_tokens": 99}, CHAT, COMPATIBLE, {"max_completion_tokens": b"50"}),
        ({"max_tokens": 0}, CHAT, COMPATIBLE, {"max_tokens": b"50"}),
        ({"max_tokens": -1, "max_completion_tokens": 9}, CHAT, COMPATIBLE, {"max_tokens": b"50"}),
        ({"max_tokens": None}, CHAT, COMPATIBLE, {"max_tokens": b"50"}),
        ({"max_tokens": None}, CHAT, "VENDOR_B", {"max_completion_tokens": b"50"}),
        ({"n_predict": 9}, CHAT, COMPATIBLE, {"max_tokens": b"50"}),
        ({"n_predict": 99}, CHAT, COMPATIBLE, {"n_predict": b"50", "max_tokens": b"50"}),
        ({"max_tokens": 20}, RESPONSES, "VENDOR_B", {"max_output_tokens": b"50"}),
    ],
)
def test_caps_above_the_grant_are_lowered_and_a_missing_one_is_added(
    body: dict[str, Any], path: str, provider: str, changed: dict[str, bytes]
) -> None:
    assert capped_members(body, path, provider, CAP) == changed


@pytest.mark.parametrize(
    ("path", "target", "raw", "upstream"),
    [
        (
            CHAT,
            VENDOR_B,
            b' { "model" : "acme/fast","messages":[{"max_tokens":900}], "max_tokens" : 900 , "n":2}\n',
            b' { "model" : "gpt-x","messages":[{"max_tokens":900}], "max_tokens" : 50 , "n":2}\n',
        ),
        (
            CHAT,
            PLATFORM,
            b'{"messages": [],  "model":"acme/fast","temperature":1.00}',
            b'{"max_tokens":50,"messages": [],  "model":"acme/fast","temperature":1.00}',
        ),
        (
            CHAT,
            SERVER,
            b'{"model":"acme/fast","max_completion_tokens":900,"max_tokens":0,"messages":[]}',
            b'{"model":"acme/fast","max_completion_tokens":50,"max_tokens":50,"messages":[]}',
        ),
        (
            COMPLETIONS,
            VENDOR_B,
            b'{"model":"acme/fast", "prompt":"a"}',
            b'{"max_tokens":50,"model":"gpt-x", "prompt":"a"}',
        ),
        (
            MESSAGES,
            VENDOR_A,
            b'{"model":"acme/fast","max_tokens":64000,"thinking":{"type":"enabled","budget_tokens":20},"messages":[ ]}',
            b'{"model":"claude-x","max_tokens":50,"thinking":{"type":"enabled","budget_tokens":20},"messages":[ ]}',
        ),
        (
            RESPONSES,
            VENDOR_B,
            b'{"model":"acme/fast","input":"max_output_tokens","max_output_tokens":70}',
            b'{"model":"gpt-x","input":"max_output_tokens","max_output_tokens":50}',
        ),
        (
            CHAT,
            PLATFORM,
            b'{"model":"acme/fast","max_tokens":900,"max_tokens":800}',
            b'{"model":"acme/fast","max_tokens":50}',
        ),
        (CHAT, PLATFORM, b'{"model":"acme/fast","max_tokens":50}', b'{"model":"acme/fast","max_tokens":50}'),
        ("/v1/embeddings", PLATFORM, b'{"model":"acme/fast","input":"a"}', b'{"model":"acme/fast","input":"a"}'),
    ],
)
def test_passed_body_has_the_cap_and_is_the_same_byte_for_byte_otherwise(
    path: str, target: Target, raw: bytes, upstream: bytes
) -> None:
    assert sent(raw, target, path) == upstream


@pytest.mark.parametrize("cap_text", [b"", b'"max_tokens" : 9000, '])
@pytest.mark.parametrize("size", [40_000, 100_000, 3 * AT_ONCE_BYTES])
def test_long_body_is_edited_without_a_copy(cap_text: bytes, size: int) -> None:
    raw = b'{"model":"acme/fast", ' + cap_text + b'"messages":[{"role":"user","content":"' + b"a" * size + b'"}] }'
    call = capped(raw)
    parsed = parse_with_placeholders(raw) if size <= AT_ONCE_BYTES else at_once(parse_in_slices(raw))
    assert parsed is not None
    call.json, call.outline = parsed
    assert call.outline is not None
    body = build_request(call, VENDOR_B, "k").body
    assert isinstance(body, SegmentedBody)
    capped_text = cap_text.replace(b"9000", b"50")
    added = b"" if cap_text else b'"max_completion_tokens":50,'
    assert bytes(body) == b"{%b%b" % (added, raw[1:].replace(b"acme/fast", b"gpt-x").replace(cap_text, capped_text))
    assert sum(isinstance(segment, memoryview) and len(segment) >= size for segment in body.text_segments) == 1


TRANSLATED = [
    (CHAT, VENDOR_A, {"messages": [USER], "max_tokens": 900}, "max_tokens"),
    (CHAT, VENDOR_A, {"messages": [USER]}, "max_tokens"),
    (RESPONSES, VENDOR_A, {"input": "hi"}, "max_tokens"),
    (MESSAGES, VENDOR_B, {"messages": [USER], "max_tokens": 900}, "max_completion_tokens"),
    (MESSAGES, Target("VENDOR_C", target_model="g"), {"messages": [USER], "max_tokens": 900}, "max_tokens"),
    (
        MESSAGES,
        VENDOR_B,
        {"messages": [USER], "max_tokens": 900, "thinking": {"type": "enabled", "budget_tokens": 20}},
        "max_output_tokens",
    ),
]


@pytest.mark.parametrize(("path", "target", "members", "name"), TRANSLATED)
def test_translated_body_differs_in_its_cap_alone(
    path: str, target: Target, members: dict[str, Any], name: str
) -> None:
    raw = orjson.dumps({"model": SLUG} | members)
    plain = orjson.loads(bytes(build_request(received(raw, path), target, None).body))
    assert orjson.loads(sent(raw, target, path)) == plain | {name: CAP}


def test_thinking_that_a_translation_adds_fits_below_the_cap() -> None:
    older = Target("VENDOR_A", secret_id="s", target_model="claude-opus-4-5")
    raw = orjson.dumps({"model": SLUG, "messages": [USER], "max_tokens": 60_000, "reasoning_effort": "high"})
    upstream = orjson.loads(sent(raw, older, cap=4000))
    assert upstream["max_tokens"] == 4000
    assert upstream["thinking"] == {"type": "enabled", "budget_tokens": 3000}
    assert "thinking" not in orjson.loads(sent(raw, older, cap=16))


def test_next_dialect_has_the_cap_too() -> None:
    dialects = Dialects(lambda: 0.0, SEAL_KEYS)
    call = capped(orjson.dumps({"model": SLUG, "messages": [USER], "max_tokens": 900}), MESSAGES)
    first = dialects.first_attempt(call, SERVER)
    assert orjson.loads(bytes(dialects.build_body(call, SERVER, first)))["max_tokens"] == CAP
    following = dialects.following(call, SERVER, first, 404, b"")
    assert following is not None
    assert orjson.loads(bytes(dialects.build_body(call, SERVER, following())))["max_tokens"] == CAP


def test_answer_that_the_cap_cut_off_passes_as_it_is() -> None:
    answer = orjson.dumps(
        {
            "model": SLUG,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "so"}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 50, "total_tokens": 59},
        }
    )
    call = capped(orjson.dumps({"model": SLUG, "messages": [USER], "max_tokens": 900}))
    reader = answer_reader(call, PLATFORM, JSON)
    assert read(reader, [answer]) == answer
    tokens = reader.reported.tokens
    assert tokens is not None
    assert tokens.output == CAP
