"""Hides secrets in an upstream's text, also where JSON or a URL escapes them. Pure; takes linear time.

Decodes each escape once and records the offsets. A secret found in the decoded text is then cut out of the original.
"""

import re
from bisect import bisect_right
from itertools import accumulate

HIDDEN = b"[hidden]"
MAX_ESCAPES = 20_000
"""Most escapes that are decoded, which takes a few milliseconds. No error meant for people has more."""
MAX_CANDIDATES = 10 * MAX_ESCAPES
"""Most backslashes and percent signs together, whether they begin an escape or not."""

# Any number of backslashes and of %25: JSON in JSON, a URL in a URL. A match may begin only at the first backslash of
# a row, because trying each of them would take quadratic time. Each alternative begins with one of two bytes, so the
# search skips all others quickly.
_SIMPLE = re.compile(rb"\\(?<!\\\\)\\*(?:u00[2-7][0-9a-fA-F]|/)|%(?:25)*[2-7][0-9a-fA-F]")
"""Escapes of visible ASCII except quote and backslash: enough for most credentials and hosts."""
_ALL = re.compile(
    rb"\\(?<!\\\\)\\*"
    rb"(?:u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[\"/bfnrt])?"
    rb"|%(?:25)*[0-9a-fA-F]{2}"
)
"""All escapes, and backslashes that escape nothing."""
_SHORT = {b'"': b'"', b"/": b"/", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"": b""}
_PLAIN = frozenset(range(0x21, 0x7F)) - frozenset(b'"\\')


class TooManyEscapesError(Exception):
    """The text has too many escapes to be searched."""


def mask(text: bytes, secret: bytes) -> bytes:
    """`text` with `[hidden]` in place of each `secret`, escaped or not. Raises `TooManyEscapesError`."""
    text = text.replace(secret, HIDDEN)
    candidates = text.count(b"\\") + text.count(b"%")
    if not candidates:
        return text
    if candidates > MAX_CANDIDATES:
        raise TooManyEscapesError
    escapes = _SIMPLE if _PLAIN.issuperset(secret) else _ALL
    # The secret may itself contain what looks like an escape: search for both readings of it.
    for secret_text in {_DecodedText(secret, escapes).text, secret.replace(b"\\", b"")} - {b""}:
        text = _DecodedText(text, escapes).without(secret_text)
    return text


class _DecodedText:
    """A text with its escapes decoded, and the offset of each of its parts in the original."""

    def __init__(self, original: bytes, escapes: re.Pattern[bytes]) -> None:
        self._original = original
        spans = [match.span() for _, match in zip(range(MAX_ESCAPES + 1), escapes.finditer(original), strict=False)]
        if len(spans) > MAX_ESCAPES:
            raise TooManyEscapesError
        parts: list[bytes] = []
        decoded: dict[bytes, bytes] = {}
        self._starts: list[int] = []
        """Offset of each part in the original. Even parts are plain text, odd ones are escapes."""
        end = 0
        for start, following in spans:
            escape = original[start:following]
            if escape not in decoded:
                decoded[escape] = _decoded(escape)
            parts += (original[end:start], decoded[escape])
            self._starts += (end, start)
            end = following
        parts.append(original[end:])
        self._starts += (end, len(original))
        self.text = b"".join(parts)
        self._offsets = [0, *accumulate(map(len, parts))]
        """Offset of each part in `text`."""

    def without(self, secret: bytes) -> bytes:
        """The original text with `[hidden]` in place of all that decodes to `secret`."""
        kept, done, at = [], 0, self.text.find(secret)
        while at >= 0:
            kept.append(self._original[done : self._original_start(at)])
            at += len(secret)
            done = self._original_end(at)
            at = self.text.find(secret, at)
        return HIDDEN.join((*kept, self._original[done:]))

    def _original_start(self, offset: int) -> int:
        """The offset in the original at which the decoded byte at `offset` begins."""
        part = bisect_right(self._offsets, offset) - 1
        begin = self._starts[part]
        return begin if part % 2 else begin + offset - self._offsets[part]

    def _original_end(self, offset: int) -> int:
        """The offset in the original at which the decoded byte before `offset` ends."""
        part = bisect_right(self._offsets, offset - 1) - 1
        return self._starts[part + 1] if part % 2 else self._starts[part] + offset - self._offsets[part]


def _decoded(escape: bytes) -> bytes:
    """The bytes that an escape stands for; empty for a backslash, which may itself escape another one."""
    if escape.startswith(b"%"):
        return bytes((int(escape[-2:], 16),)).replace(b"\\", b"")
    escape = escape.lstrip(b"\\")
    if not escape.startswith(b"u"):
        return _SHORT[escape]
    unit = int(escape[1:5], 16)
    if len(escape) > 5:  # a surrogate pair
        unit = 0x10000 + (unit - 0xD800) * 0x400 + int(escape[-4:], 16) - 0xDC00
    return chr(unit).encode("utf-8", "surrogatepass").replace(b"\\", b"")
