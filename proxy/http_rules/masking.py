"""Hides secrets in an upstream's text, also where JSON, a URL, base64 or hex spells them. Pure; takes linear time.

Decodes each escape once and records the offsets. A secret found in the decoded text is then cut out of the original.

See docs/reference/inference.md#masking.
"""

import re
from base64 import b64encode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
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
ENCODED_FROM_BYTES = 8
"""Shorter secrets are not searched in base64 and hex: so few characters occur in other words, too."""
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_="
"""The characters of base64, of its form for URLs, and of hex."""
_RUN = re.compile(b"[%b]*+" % re.escape(_ALPHABET))
_FIXED_VALUES = frozenset(
    (
        *("content-type", "content-language", "cache-control", "retry-after", "retry-after-ms", "x-should-retry"),
        *("content-encoding", "content-range", "accept-ranges", "last-modified", "expires", "vary", "allow"),
    )
)
"""Fields whose values are words of HTTP: a short credential, such as `text`, is no secret in them."""
_SHORT = {b'"': b'"', b"/": b"/", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"": b""}
_PLAIN = frozenset(range(0x21, 0x7F)) - frozenset(b'"\\')


class TooManyEscapesError(Exception):
    """The text has too many escapes to be searched."""


def mask(text: bytes, secret: bytes) -> bytes:
    """`text` with `[hidden]` in place of each `secret`, however it is spelled. Raises `TooManyEscapesError`."""
    text = text.replace(secret, HIDDEN)
    encoded = _encoded(secret) if len(secret) >= ENCODED_FROM_BYTES else ()
    candidates = text.count(b"\\") + text.count(b"%")
    if not candidates:
        return _DecodedText(text, None).without_runs(encoded)
    if candidates > MAX_CANDIDATES:
        raise TooManyEscapesError
    escapes = _SIMPLE if _PLAIN.issuperset(secret) else _ALL
    # The secret may itself contain what looks like an escape: search for both readings of it.
    for secret_text in {_DecodedText(secret, escapes).text, secret.replace(b"\\", b"")} - {b""}:
        text = _DecodedText(text, escapes).without(secret_text)
    return _DecodedText(text, _SIMPLE).without_runs(encoded)


def mask_fields(fields: Sequence[tuple[str, str]], secret: str | None) -> Sequence[tuple[str, str]]:
    """An upstream's header fields with `secret` hidden, however it is spelled."""
    if not secret:
        return fields
    text = "\n".join([value for _, value in fields])
    if "%" not in text and "\\" not in text and not any(spelling in text for spelling in _spellings(secret)):
        return fields
    return [(name, _masked_value(name, value, secret)) for name, value in fields]


def _masked_value(name: str, value: str, secret: str) -> str:
    if name in _FIXED_VALUES and len(secret) < ENCODED_FROM_BYTES:
        return value
    try:
        masked = mask(value.encode("utf-8", "surrogateescape"), secret.encode("utf-8", "surrogateescape"))
    except TooManyEscapesError:
        return ""
    return masked.decode("utf-8", "surrogateescape")


@lru_cache(1024)
def _spellings(secret: str) -> tuple[str, ...]:
    """Return the spellings that a text without escapes may have for the secret."""
    raw = secret.encode("utf-8", "surrogateescape")
    encoded = _encoded(raw) if len(raw) >= ENCODED_FROM_BYTES else set()
    return (secret, *(form.decode() for form in encoded))


def _encoded(secret: bytes) -> set[bytes]:
    """Return what base64 and hex make of the secret, for every text before and after it in the encoded text."""
    forms = {secret.hex().encode(), secret.hex().upper().encode()}
    for before in range(3):  # base64 writes three bytes as four characters, so a secret has three places to begin
        own = slice((8 * before + 5) // 6, 8 * (before + len(secret)) // 6)  # the characters that are of it alone
        padded = bytes(before) + secret
        forms |= {b64encode(padded)[own], urlsafe_b64encode(padded)[own]}
    return forms


class _DecodedText:
    """A text with its escapes decoded, and the offset of each of its parts in the original."""

    def __init__(self, original: bytes, escapes: re.Pattern[bytes] | None) -> None:
        """`escapes`: None if there is none."""
        self._original = original
        matches = () if escapes is None else escapes.finditer(original)
        spans = [match.span() for _, match in zip(range(MAX_ESCAPES + 1), matches, strict=False)]
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
        spans: list[tuple[int, int]] = []
        at = self.text.find(secret)
        while at >= 0:
            spans.append((at, at + len(secret)))
            at = self.text.find(secret, at + len(secret))
        return self._cut(spans)

    def without_runs(self, forms: Collection[bytes]) -> bytes:
        """The original text with `[hidden]` in place of each run of base64 or hex that holds one of `forms`."""
        text = self.text
        spans: list[tuple[int, int]] = []
        for form in forms:
            run_end = 0
            at = text.find(form)
            while at >= 0:
                before = text[run_end:at]
                start = run_end + len(before.rstrip(_ALPHABET))
                run_end = _RUN.match(text, at).end()  # type: ignore[union-attr]  # it matches everywhere
                spans.append((start, run_end))
                at = text.find(form, run_end)
        return self._cut(sorted(spans)) if spans else self._original

    def _cut(self, spans: list[tuple[int, int]]) -> bytes:
        """The original text with `[hidden]` in place of these spans of the decoded text, which are in order."""
        pieces = []
        cut_end = 0
        last = 0
        for start, end in spans:
            if start >= last:
                pieces.append(self._original[cut_end : self._original_start(start)])
            last = max(last, end)
            cut_end = self._original_end(last)
        return HIDDEN.join((*pieces, self._original[cut_end:]))

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
