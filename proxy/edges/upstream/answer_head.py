"""Reads the fields of an answer's head, which the parser has accepted: its framing is the parser's alone.

A parser that reports fields calls once for each, and answers have twenty. So it reports none. What every call asks
about is searched for here in one step; all fields are read only for those who ask.
"""

import re
from functools import lru_cache

from proxy.answers import AnswerFields, Headers
from proxy.http_rules.headers import READ_FIELDS, RETURNED_FIELDS, answer_fields

END = b"\r\n\r\n"
KNOWN_ANSWERS = 256
KNOWN_BYTES = 4096
"""Only what shorter heads say is remembered, for memory's sake."""

# The parser takes no folded line, no blank before a colon, and no CR or LF but at a line's end: each field is one line.
_names = b"|".join(sorted(name.encode() for name in READ_FIELDS | RETURNED_FIELDS))
wanted_fields = re.compile(rb"\r\n(" + _names + rb"):[ \t]*([^\r]*)", re.IGNORECASE).findall
"""Those that the gateway acts on or passes to callers, in order. Takes a head without `END`."""

Found = tuple[tuple[bytes, bytes], ...]


class BrokenHttpError(Exception):
    """The parser accepted the bytes, but they are not an answer to this request."""


def understood(found: Found) -> AnswerFields:
    """What these fields say. Raises `BrokenHttpError` for a transfer coding other than one `chunked`."""
    fields = answer_fields([(_text(name).lower(), _text(value)) for name, value in found])
    if fields.codings and fields.codings != ("chunked",):
        raise BrokenHttpError("a transfer coding other than one `chunked`")
    return fields


known = lru_cache(KNOWN_ANSWERS)(understood)
"""The same. Nearly all answers of an upstream have the same few values."""


def all_fields(head: bytes | bytearray) -> Headers:
    """All fields in order, names in lower case. `head`: without `END`."""
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return [(_text(name).lower(), _text(value.lstrip(b" \t"))) for name, _, value in lines]


def _text(raw: bytes | bytearray) -> str:
    return raw.decode("utf-8", "replace")
