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
"""The longest head whose facts are cached, to bound the memory."""

# The parser takes no folded line, no blank before a colon, and no CR or LF but at a line's end: each field is one line.
_names = b"|".join(sorted(name.encode() for name in READ_FIELDS | RETURNED_FIELDS))
wanted_fields = re.compile(rb"\r\n(" + _names + rb"):[ \t]*([^\r]*)", re.IGNORECASE).findall
"""Finds the fields that the gateway acts on or passes to callers, in order. Takes a head without `END`."""

RawFields = tuple[tuple[bytes, bytes], ...]


class BrokenHttpError(Exception):
    """The parser accepted the bytes, but they are not an answer to this request."""


def facts_of(raw: RawFields) -> AnswerFields:
    """The facts in these fields. Raises `BrokenHttpError` for a transfer coding other than one `chunked`."""
    fields = answer_fields([(_text(name).lower(), _text(value)) for name, value in raw])
    if fields.codings and fields.codings != ("chunked",):
        raise BrokenHttpError("a transfer coding other than one `chunked`")
    return fields


cached_facts_of = lru_cache(KNOWN_ANSWERS)(facts_of)
"""The same, cached: nearly all answers of an upstream have the same few values."""


def all_fields(head: bytes | bytearray) -> Headers:
    """All fields in order, names in lower case. `head`: without `END`."""
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return [(_text(name).lower(), _text(value.lstrip(b" \t"))) for name, _, value in lines]


def _text(raw: bytes | bytearray) -> str:
    return raw.decode("utf-8", "replace")
