"""Finds what must not be told in foreign text, also where JSON or a URL has escaped it. Pure, in linear time.

The text is read once: each escape becomes the bytes it stands for, and where those stood is remembered, so that what
is found in the decoded text is cut out of the text as it came.
"""

import re
from bisect import bisect_right
from itertools import accumulate

HIDDEN = b"[hidden]"
MAX_ESCAPES = 20_000
"""So many are decoded at most, a few milliseconds' work; no error that means to be read has more."""
MAX_CANDIDATES = 10 * MAX_ESCAPES
"""Backslashes and percent signs, whatever they are."""

# Any number of backslashes and of %25: a JSON string in a JSON string, a URL in a URL. A match begins at the first
# backslash of a row alone: were it tried from each of them, a long row would take quadratic time. Each alternative
# begins with one of two bytes, which lets the search skip all others quickly.
_SIMPLE = re.compile(rb"\\(?<!\\\\)\\*(?:u00[2-7][0-9a-fA-F]|/)|%(?:25)*[2-7][0-9a-fA-F]")
"""Escapes of visible ASCII but for the quote and the backslash: all that most credentials and hosts are made of."""
_ALL = re.compile(
    rb"\\(?<!\\\\)\\*"
    rb"(?:u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[\"/bfnrt])?"
    rb"|%(?:25)*[0-9a-fA-F]{2}"
)
"""All escapes, and backslashes that escape nothing."""
_SHORT = {b'"': b'"', b"/": b"/", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"": b""}
_PLAIN = frozenset(range(0x21, 0x7F)) - frozenset(b'"\\')


class TooManyEscapesError(Exception):
    """The text has more escapes than are worth decoding."""


def mask(text: bytes, secret: bytes) -> bytes:
    """`text` without `secret`, as it is or escaped. Raises `TooManyEscapesError`."""
    text = text.replace(secret, HIDDEN)
    candidates = text.count(b"\\") + text.count(b"%")
    if not candidates:
        return text
    if candidates > MAX_CANDIDATES:
        raise TooManyEscapesError
    escapes = _SIMPLE if _PLAIN.issuperset(secret) else _ALL
    # What looks like an escape in the secret itself may have been escaped once more, or not.
    for meant in {_Decoded(secret, escapes).text, secret.replace(b"\\", b"")} - {b""}:
        text = _Decoded(text, escapes).without(meant)
    return text


class _Decoded:
    """A text whose escapes are decoded, and where in the original each part of it begins."""

    def __init__(self, original: bytes, escapes: re.Pattern[bytes]) -> None:
        self._original = original
        spans = [match.span() for _, match in zip(range(MAX_ESCAPES + 1), escapes.finditer(original), strict=False)]
        if len(spans) > MAX_ESCAPES:
            raise TooManyEscapesError
        parts: list[bytes] = []
        meanings: dict[bytes, bytes] = {}
        self._begins: list[int] = []
        """Of each part in the original: what stands between two escapes, and an escape, in turn."""
        end = 0
        for start, following in spans:
            escape = original[start:following]
            if escape not in meanings:
                meanings[escape] = _meaning(escape)
            parts += (original[end:start], meanings[escape])
            self._begins += (end, start)
            end = following
        parts.append(original[end:])
        self._begins += (end, len(original))
        self.text = b"".join(parts)
        self._offsets = [0, *accumulate(map(len, parts))]
        """Of each part in `text`."""

    def without(self, secret: bytes) -> bytes:
        """The original with all that means `secret` hidden."""
        kept, done, at = [], 0, self.text.find(secret)
        while at >= 0:
            kept.append(self._original[done : self._place(at)])
            at += len(secret)
            done = self._place_after(at)
            at = self.text.find(secret, at)
        return HIDDEN.join((*kept, self._original[done:]))

    def _place(self, offset: int) -> int:
        """Where in the original the byte at `offset` of the decoded text begins."""
        part = bisect_right(self._offsets, offset) - 1
        begin = self._begins[part]
        return begin if part % 2 else begin + offset - self._offsets[part]

    def _place_after(self, offset: int) -> int:
        """Where in the original the byte before `offset` of the decoded text ends."""
        part = bisect_right(self._offsets, offset - 1) - 1
        return self._begins[part + 1] if part % 2 else self._begins[part] + offset - self._offsets[part]


def _meaning(escape: bytes) -> bytes:
    """The bytes that an escape stands for; none for a backslash, of which nobody knows how many escape the others."""
    if escape.startswith(b"%"):
        return bytes((int(escape[-2:], 16),)).replace(b"\\", b"")
    escape = escape.lstrip(b"\\")
    if not escape.startswith(b"u"):
        return _SHORT[escape]
    unit = int(escape[1:5], 16)
    if len(escape) > 5:  # the second half of a pair
        unit = 0x10000 + (unit - 0xD800) * 0x400 + int(escape[-4:], 16) - 0xDC00
    return chr(unit).encode("utf-8", "surrogatepass").replace(b"\\", b"")
