"""The meaning of a receiver's HTTP answer for the events that were sent. Pure."""

import json
from enum import Enum
from typing import Any, Protocol

from commands.output import cell_text
from commands.records.receiver import Answer, ReceiverAwayError, ReceiverError

_AGAIN_LATER = frozenset((408, 425, 429))
_ABOUT_THE_EVENTS = frozenset((400, 409, 413, 422))
_LONGEST_REASON = 200


class Sender(Protocol):
    """Posts to the receiver. Raises ReceiverAwayError without an answer."""

    async def post(self, path: str, body: bytes, content_type: str) -> Answer: ...

    async def close(self) -> None: ...


class Verdict(Enum):
    """The outcome of one request for its events."""

    TAKEN = "taken"
    REFUSED = "refused"


def verdict(answer: Answer) -> Verdict:
    """Raises ReceiverAwayError if they should be sent again, ReceiverError if that is no use with any event."""
    status = answer.status
    if 200 <= status < 300:
        return Verdict.TAKEN
    if status in _ABOUT_THE_EVENTS:
        return Verdict.REFUSED
    if status >= 500 or status in _AGAIN_LATER:
        raise ReceiverAwayError(f"the receiver answers {status}", status >= 500, answer.retry_after_s)
    if status in (401, 403):
        raise ReceiverError(f"the receiver answers {status}: it does not accept the key. Check its variable")
    raise ReceiverError(f"the receiver answers {status}. Check --receiver-url; redirects are not followed")


def reason(answer: Answer) -> str:
    """Return why the receiver refused, in one line, as far as it said so."""
    text = _message(answer.body) or answer.body.decode(errors="replace")
    return f"{answer.status} {cell_text(' '.join(text.split())[:_LONGEST_REASON])}"


def error_of(body: bytes) -> dict[str, Any]:
    """The member `error` of a JSON object, as far as it is one."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    error = parsed.get("error") if isinstance(parsed, dict) else None
    return error if isinstance(error, dict) else {}


def _message(body: bytes) -> str:
    message = error_of(body).get("message")
    return message if isinstance(message, str) else ""
