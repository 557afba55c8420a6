"""JSON in pieces: a long answer is encoded item by item and sent in pieces, so that others are served in between."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import orjson
from pydantic import BaseModel

_LONG_BYTES = 262_144
Pieces = Sequence[bytes]
"""Pieces of JSON text, in the order in which they are sent."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """An answer that is JSON already. `headers`: those that belong to its content."""

    pieces: Pieces
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Array:
    """A value of `encode_object` whose items are encoded already."""

    items: Iterable[Pieces]


def encode_object(members: Mapping[str, Any]) -> list[bytes]:
    """The JSON object with these members: what orjson encodes, or an `Array`."""
    pieces: list[bytes] = []
    before = b"{"
    for name, value in members.items():
        pieces.append(before + orjson.dumps(name) + b":")
        pieces += _array(value.items) if isinstance(value, Array) else (orjson.dumps(value),)
        before = b","
    pieces.append(b"}")
    return pieces


def _array(items: Iterable[Pieces]) -> Iterable[bytes]:
    before = b"["
    for item in items:
        yield before
        yield from item
        before = b","
    yield b"[]" if before == b"[" else b"]"


def encoded(answer: BaseModel | Encoded) -> Encoded:
    """The answer as JSON in UTF-8."""
    return answer if isinstance(answer, Encoded) else Encoded([answer.model_dump_json(by_alias=True).encode()])


def joined(pieces: Pieces) -> bytes | BytesIO:
    """The body of an answer. A long one is a file object, which aiohttp sends in pieces."""
    if sum(map(len, pieces)) <= _LONG_BYTES:
        return b"".join(pieces)
    body = BytesIO()
    body.writelines(pieces)
    body.seek(0)
    return body
