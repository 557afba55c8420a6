"""All vendors in one behaviour, each with its own dialect and credential. The request's path selects the vendor.

The answer is an error if the text of the request contains `fail <status>`.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives import serialization

from tests.issuer import rsa_key
from tests.upstream.behaviours import answer_json
from tests.upstream.chat_completions import DONE, Usage, begin_events, chat_chunk, end_events, event, send_event
from tests.upstream.exchange import Exchange

CREDENTIAL = "sk-vendor-credential-9f2c"
ACCESS_TOKEN = "ya29.minted-for-this-run"
MODEL = "the-vendors-own-name"
WORDS = ("This ", "is ", "the ", "vendor.")
TEXT = "".join(WORDS)
CHAT_USAGE = Usage(20, 10, 5).wire()
MESSAGES_USAGE = {"input_tokens": 15, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 0}


def vendor_settings(url: str) -> Mapping[str, str]:
    """The settings that put all vendors at `url`."""
    return {f"TOLLGATE_VENDOR_{letter}_BASE_URL": url for letter in "ABC"}


def service_account(url: str) -> str:
    """A secret's value for VENDOR_C, whose token endpoint is at `url` too."""
    pem = rsa_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"client_email": "bot@p.example", "private_key": pem.decode(), "token_uri": f"{url}/token"}
    return base64.b64encode(json.dumps(account).encode()).decode()


async def answer_as_vendors(exchange: Exchange) -> None:
    """The behaviour."""
    await exchange.read_body()
    path = exchange.received.path
    if path == "/token":
        token = {"access_token": ACCESS_TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        await answer_json(200, token)(exchange)
    elif (status := _status_of(exchange)) != 200:
        await answer_json(status, _error_with_secrets(exchange))(exchange)
    elif path == "/v1/messages":
        await _messages(exchange, exchange.received.json)
    else:
        assert path in ("/v1/chat/completions", "/v1/projects/p/locations/l/endpoints/openapi/chat/completions")
        await _chat(exchange, exchange.received.json)


def _status_of(exchange: Exchange) -> int:
    text = json.dumps(exchange.received.json["messages"])
    return next((status for status in (401, 429, 500, 529) if f"fail {status}" in text), 200)


def _error_with_secrets(exchange: Exchange) -> dict[str, Any]:
    """An error that quotes the refused credential and the vendor's host."""
    received = exchange.received
    credential = received.header("authorization") or received.header("x-api-key")
    message = f"{received.header('host')} does not like {credential}"
    return {"type": "error", "error": {"type": "vendor_error", "message": message}}


async def _messages(exchange: Exchange, body: dict[str, Any]) -> None:
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
    if not body.get("stream"):
        usage = MESSAGES_USAGE | {"output_tokens": 10}
        await answer_json(200, message | stop | {"content": [{"type": "text", "text": TEXT}], "usage": usage})(exchange)
        return
    head = message | {"content": [], "stop_reason": None, "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": head | {"usage": MESSAGES_USAGE | {"output_tokens": 1}}},
        {"type": "ping"},
        *_text_block(),
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 10}},
        {"type": "message_stop"},
    ]
    await _stream(exchange, [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events])


def _text_block() -> list[dict[str, Any]]:
    deltas = [{"type": "text_delta", "text": word} for word in WORDS]
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    content_deltas = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    return [start, *content_deltas, {"type": "content_block_stop", "index": 0}]


async def _chat(exchange: Exchange, body: dict[str, Any]) -> None:
    if not body.get("stream"):
        answer = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
        answer |= {"object": "chat.completion", "choices": [choice], "usage": CHAT_USAGE}
        await answer_json(200, answer)(exchange)
        return
    deltas = [{"role": "assistant"}, *({"content": word} for word in WORDS)]
    choices: list[list[dict[str, Any]]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    chunks = [chat_chunk(body["model"], choice) | {"usage": None} for choice in choices]
    chunks += [chat_chunk(body["model"], []) | {"usage": CHAT_USAGE}]
    await _stream(exchange, [*map(event, chunks), DONE])


async def _stream(exchange: Exchange, frames: list[bytes]) -> None:
    await begin_events(exchange)
    for frame in frames:
        await send_event(exchange, frame)
    await end_events(exchange)
