"""Bodies, signatures and retry times of deliveries to webhooks. Pure.

A body may have 100 MB and is never whole in memory. It is made twice from the stored answer: once to sign and measure
it, once to send it.

See docs/reference/inference.md#asynchronous-requests.
"""

import hmac
from base64 import b64decode, b64encode
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson

from proxy.async_requests.endings import ANSWER_LOST
from proxy.async_requests.requests import Delivery
from proxy.async_requests.states import Status
from runtime.log_schema import timestamp

TYPE = "async_request_completed"
TRIES_AT_S = (0, 15, 60, 180, 600)
"""Seconds from the request's end to the start of each try."""
SHORTEST_PAUSE_MS = 1000
"""Shortest pause between two tries, even if the first of them took long."""
PIECE_BYTES = 64 << 10
"""Bytes of text that are escaped at a time: at most a millisecond of work."""
SECRET_PREFIX = "whsec_"  # noqa: S105 (a prefix, no secret)


def again_in_ms(delivery: Delivery) -> int | None:
    """Return the pause after a try that has failed; None if it was the last one."""
    if delivery.attempt >= len(TRIES_AT_S):
        return None
    return max(TRIES_AT_S[delivery.attempt] * 1000 - delivery.age_ms, SHORTEST_PAUSE_MS)


def without_answer(delivery: Delivery) -> Delivery:
    """Replace the answer by a failure if a part of it was lost: better than a wrong answer."""
    return replace(delivery, status=Status.FAILED, errors=(ANSWER_LOST,), answer=None)


class ResultBody:
    """The body of a delivery in pieces: `begin`, then `parts` of each stored chunk of the answer, then `end`.

    `data` is the answer itself if it is JSON, a JSON string if it is text, and null if there is none.
    Make a new one for each pass; all passes give the same bytes.
    """

    __slots__ = ("_decoder", "_head", "_tail")

    def __init__(self, delivery: Delivery) -> None:
        answer = delivery.answer
        is_text = answer is not None and not answer.is_json
        self._head, self._tail = _around_data(delivery)
        if answer is None:
            self._head += b"null"
        elif is_text:
            self._head = self._head + b'"'
            self._tail = b'"' + self._tail
        self._decoder = getincrementaldecoder("utf-8")("replace") if is_text else None

    def begin(self) -> bytes:
        return self._head

    def chunk_parts(self, chunk: bytes) -> Iterator[bytes]:
        """The body's bytes for the answer's next chunk. Each takes at most a millisecond to make."""
        decoder = self._decoder
        if decoder is None:
            yield chunk
            return
        for at in range(0, len(chunk), PIECE_BYTES):
            yield _escaped(decoder.decode(chunk[at : at + PIECE_BYTES]))

    def end(self) -> bytes:
        rest = b"" if self._decoder is None else _escaped(self._decoder.decode(b"", final=True))
        return rest + self._tail


class SignedHeaders:
    """Signs a body that is given in pieces, as Standard Webhooks has it: one signature per secret.

    `at_s`: when the message is sent, in seconds since 1970. Without a secret there is no signature.
    """

    __slots__ = ("_at_s", "_id", "_signatures", "size_bytes")

    def __init__(self, message_id: str, at_s: int, secrets: Sequence[str]) -> None:
        self._id = message_id
        self._at_s = at_s
        head = f"{message_id}.{at_s}.".encode()
        self._signatures = [hmac.new(_key(secret), head, sha256) for secret in secrets]
        self.size_bytes = 0
        """Size of the body so far."""

    def add(self, part: bytes) -> None:
        self.size_bytes += len(part)
        for signature in self._signatures:
            signature.update(part)

    def headers(self) -> dict[str, str]:
        """The header fields that go with the body."""
        headers = {
            "content-type": "application/json",
            "webhook-id": self._id,
            "webhook-timestamp": str(self._at_s),
        }
        if self._signatures:
            signed = (b64encode(signature.digest()).decode() for signature in self._signatures)
            headers["webhook-signature"] = " ".join(f"v1,{signature}" for signature in signed)
        return headers


def _around_data(delivery: Delivery) -> tuple[bytes, bytes]:
    """The body before the value of `data`, and after it."""
    deployment = delivery.deployment
    before: dict[str, Any] = {
        "request_id": delivery.request_id,
        "model_id": deployment.model_id,
        "deployment_id": deployment.deployment_id,
        "type": TYPE,
        "time": timestamp(delivery.ended_at_ms),
    }
    errors = [{"code": error.code, "message": error.message} for error in delivery.errors]
    return orjson.dumps(before)[:-1] + b',"data":', b"," + orjson.dumps({"errors": errors})[1:]


def _escaped(text: str) -> bytes:
    return orjson.dumps(text)[1:-1]


def _key(secret: str) -> bytes:
    """The key in `whsec_…`. Receivers' libraries take it without padding, too."""
    return b64decode(secret.removeprefix(SECRET_PREFIX) + "==")
