"""A vendor of moderations, rankings, images and audio. Reads forms with Python's email package, not with our parser."""

import json
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

from tests.upstream.behaviours import answer, answer_json, chunked, head
from tests.upstream.exchange import Exchange

AUDIO = bytes(range(256)) * 400
TEXT = "What was said."
WORDS = ["What ", "was ", "said."]
USAGE = {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}
USAGE |= {"input_tokens_details": {"text_tokens": 10, "image_tokens": 4}}
USAGE |= {"input_token_details": {"text_tokens": 10, "audio_tokens": 4}}
IMAGE = "aW1hZ2U="


async def answer_as_media_vendor(exchange: Exchange) -> None:
    """The behaviour. Streams if the request asks for it."""
    fields = fields_of(exchange.received.header("content-type") or "", await exchange.read_body())
    is_stream = fields.get("stream") in (True, b"true") or fields.get("stream_format") == "sse"
    path = exchange.received.path.removeprefix("/v1")
    if is_stream:
        await _stream(exchange, STREAMS[path])
    elif path == "/audio/speech":
        await exchange.send(head(200, {"content-type": "audio/mpeg", "transfer-encoding": "chunked"}))
        for start in range(0, len(AUDIO), 10_000):
            await exchange.send(chunked(AUDIO[start : start + 10_000], end=False))
        await exchange.send(b"0\r\n\r\n")
    elif fields.get("response_format") == b"text":
        await answer(200, TEXT.encode(), {"content-type": "text/plain; charset=utf-8"})(exchange)
    else:
        await answer_json(200, BODIES[path] | ({"model": fields["model"]} if path in NAMING else {}))(exchange)


NAMING = ("/moderations", "/rerank")
BODIES: dict[str, dict[str, Any]] = {
    "/moderations": {"id": "modr-1", "results": []},
    "/rerank": {"id": "r-1", "results": [{"index": 0, "relevance_score": 0.9}], "usage": {"total_tokens": 9}},
    "/images/generations": {"created": 1, "data": [{"b64_json": IMAGE}], "usage": USAGE},
    "/images/edits": {"created": 1, "data": [{"b64_json": IMAGE}], "usage": USAGE},
    "/audio/transcriptions": {"text": TEXT, "usage": USAGE},
    "/audio/translations": {"text": TEXT},
}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "/images/generations": [
        {"type": "image_generation.partial_image", "b64_json": IMAGE, "partial_image_index": 0},
        {"type": "image_generation.completed", "b64_json": IMAGE, "usage": USAGE},
    ],
    "/images/edits": [{"type": "image_edit.completed", "b64_json": IMAGE, "usage": USAGE}],
    "/audio/speech": [
        {"type": "speech.audio.delta", "audio": IMAGE},
        {"type": "speech.audio.done", "usage": USAGE},
    ],
    "/audio/transcriptions": [
        *({"type": "transcript.text.delta", "delta": word} for word in WORDS),
        {"type": "transcript.text.done", "text": TEXT, "usage": USAGE},
    ],
}


async def _stream(exchange: Exchange, events: list[dict[str, Any]]) -> None:
    await exchange.send(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
    for event in events:
        frame = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        await exchange.send(chunked(frame, end=False))
    await exchange.send(b"0\r\n\r\n")


def fields_of(content_type: str, body: bytes) -> dict[str, Any]:
    """The members of a JSON body, or the parts of a form by name. A name that occurs twice is an error of the test."""
    if not content_type.startswith("multipart/"):
        return dict(json.loads(body))
    message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    fields: dict[str, Any] = {}
    for part in message.iter_parts():
        name = str(part.get_param("name", header="content-disposition"))
        assert name not in fields or name.endswith("[]"), f"{name} occurs twice"
        fields[name] = part.get_payload(decode=True)
    return fields
