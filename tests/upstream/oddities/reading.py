"""A reader per dialect: the text of an answer as a caller understands it, and how it ended."""

import json
from dataclasses import dataclass
from typing import Any

from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.row import Ended, Json

PATHS = {CHAT_COMPLETIONS: "/v1/chat/completions", MESSAGES: "/v1/messages", RESPONSES: "/v1/responses"}

_FIELDS = ("data:", "event:", "id:", "retry:", ":")
"""First bytes of a stream. Clients read what they asked for, whatever its label."""
_DECODER = json.JSONDecoder(strict=False)


@dataclass(slots=True)
class Understood:
    """An answer as a client of its dialect reads it."""

    text: str = ""
    failed: bool = False
    complete: bool = False

    @property
    def ended(self) -> Ended:
        if self.failed:
            return "failed"
        return "complete" if self.complete else "cut"


def request_body(caller: str, slug: str, stream: bool) -> Json:
    """A small request of this dialect."""
    turns = [{"role": "user", "content": "hi"}]
    body: Json = {"model": slug, "stream": stream}
    if caller == CHAT_COMPLETIONS:
        return body | {"messages": turns}
    return body | ({"messages": turns, "max_tokens": 100} if caller == MESSAGES else {"input": "hi"})


def understood(caller: str, content_type: str, body: bytes) -> Understood:
    """Read an answer. The lenient rules of clients hold: bytes that are not UTF-8 are replaced, unknown events pass."""
    text = body.decode(errors="replace")
    start = text.removeprefix("\ufeff").lstrip()
    if start.startswith(_FIELDS) or (content_type.startswith("text/event-stream") and not start.startswith("{")):
        return _stream(caller, text)
    try:
        answer = _DECODER.raw_decode(start)[0]
    except ValueError:
        return Understood()
    return _whole(caller, answer) if isinstance(answer, dict) else Understood()


def _stream(caller: str, text: str) -> Understood:
    answer = Understood()
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    for frame in lines.split("\n\n"):
        data = "\n".join(line[5:].removeprefix(" ") for line in frame.split("\n") if line.startswith("data:"))
        if data.strip() == "[DONE]":
            answer.complete = answer.complete or caller == CHAT_COMPLETIONS
        elif data:
            _read_event(answer, caller, _DECODER.raw_decode(data)[0])
    return answer


def _read_event(answer: Understood, caller: str, event: Any) -> None:
    if not isinstance(event, dict):
        return
    kind = event.get("type")
    if _has_error(event) or kind in ("error", "response.failed"):
        answer.failed = True
    if caller == CHAT_COMPLETIONS:
        for choice in event.get("choices") or ():
            answer.text += (choice.get("delta") or {}).get("content") or ""
    elif caller == MESSAGES:
        answer.text += (event.get("delta") or {}).get("text") or "" if kind == "content_block_delta" else ""
        answer.complete = answer.complete or kind == "message_stop"
    else:
        answer.text += event["delta"] if kind == "response.output_text.delta" else ""
        answer.complete = answer.complete or kind in ("response.completed", "response.incomplete")


def _whole(caller: str, answer: Json) -> Understood:
    failed = _has_error(answer) or answer.get("type") == "error" or answer.get("status") == "failed"
    understanding = Understood(failed=failed, complete=not failed)
    if caller == CHAT_COMPLETIONS:
        texts = [(choice.get("message") or {}).get("content") for choice in answer.get("choices") or ()]
    elif caller == MESSAGES:
        texts = [block.get("text") for block in answer.get("content") or ()]
    else:
        parts = [part for item in answer.get("output") or () for part in item.get("content") or ()]
        texts = [part.get("text") for part in parts]
    understanding.text = "".join(text for text in texts if isinstance(text, str))
    return understanding


def _has_error(value: Json) -> bool:
    return bool(value.get("error")) or any(choice.get("error") for choice in value.get("choices") or ())
