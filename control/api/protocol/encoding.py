"""JSON in pieces: a long answer is encoded, joined and sent in slices, so that others are served in between."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import orjson

from control.time_slices import pause

_LONG_BYTES = 262_144
Pieces = Sequence[bytes]
"""JSON text. Making or copying one piece takes tens of microseconds at most."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """An answer that is JSON already."""

    pieces: Pieces


@dataclass(frozen=True, slots=True)
class Array:
    """A value of `encode_object` whose items are encoded already."""

    items: Iterable[Pieces]


def encode_object(members: Mapping[str, Any]) -> list[bytes]:
    """The JSON object with these members: what orjson encodes, or an `Array`."""
    found: list[bytes] = []
    before = b"{"
    for name, value in members.items():
        found.append(before + orjson.dumps(name) + b":")
        found += _array(value.items) if isinstance(value, Array) else (orjson.dumps(value),)
        before = b","
    found.append(b"}")
    return found


def _array(items: Iterable[Pieces]) -> Iterable[bytes]:
    before = b"["
    for item in items:
        yield before
        yield from item
        before = b","
    yield b"[]" if before == b"[" else b"]"


async def joined(pieces: Pieces) -> bytes | BytesIO:
    """The body of an answer. A long one is a file object, which aiohttp sends in pieces."""
    if sum(map(len, pieces)) <= _LONG_BYTES:
        return b"".join(pieces)
    body = BytesIO()
    for piece in pieces:
        await pause()
        body.write(piece)
    body.seek(0)
    return body
