"""Says whether a text that arrives in chunks is JSON: orjson validates it piece by piece, and nothing is kept.

Pure. A piece ends with a comma between two values, and is validated inside of what is open around it: after
`[1,{"a":2,`, the piece `"b":3}]` is read as `[{"":0,"b":3}]`. The inside of a long string is validated by itself, and
read as `""`. Accepts what orjson accepts, except as `MAX_UNCUT_BYTES` says.
"""

from collections.abc import Generator

import orjson

from proxy.json_text.large_json import is_plain
from proxy.json_text.string_cuts import first_unescaped_quote, safe_cut

PIECE_BYTES = 32 << 10
"""Bytes that are examined in one step."""
LONG_BYTES = 4 << 10
"""A string that reaches out of a piece is validated by itself if this much of it is in the piece."""
MAX_UNCUT_BYTES = 128 << 10
"""A text with more than this between two commas, long strings aside, is not taken as JSON.

Nobody writes so much white space, or so long a number.
"""
_LOOK_AHEAD_BYTES = 16
"""More than `safe_cut` needs behind a cut."""
_REDUCTIONS = 4
"""Rounds in which innermost pairs of brackets are removed all at once; what is left is removed one by one."""
_OPENING = {ord("]"): ord("["), ord("}"): ord("{")}
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_CLOSING = bytes.maketrans(b"[{", b"]}")

Work = Generator[None, None, None]


class StreamedJson:
    """Feed it the whole text, then ask `is_json`."""

    __slots__ = ("_before_string", "_buffer", "_open", "_refused", "_wanted_bytes")

    def __init__(self) -> None:
        self._buffer = bytearray()
        """Text that has not been validated yet."""
        self._before_string: bytes | None = None
        """Text from the last cut to a long string's opening quote, if the buffer is the inside of that string."""
        self._open = b""
        """The brackets that are open at the last cut."""
        self._wanted_bytes = PIECE_BYTES
        self._refused = False

    def feed(self, chunk: bytes) -> Work:
        """Look at the text's next chunk. A step takes less than a millisecond for nearly all texts."""
        for at in range(0, len(chunk), PIECE_BYTES):
            self._buffer += chunk[at : at + PIECE_BYTES]
            while not self._refused and len(self._buffer) >= self._wanted_bytes:
                self._step()
                yield
            if self._refused:
                self._buffer.clear()
                return

    def is_json(self) -> bool:
        """Return whether the text fed so far is one JSON value."""
        if self._before_string is not None and not self._refused:
            self._step(final=True)
        if self._refused or self._before_string is not None:
            return False
        try:
            orjson.loads(_opened(self._open) + self._buffer)
        except orjson.JSONDecodeError:
            return False
        return True

    def _step(self, final: bool = False) -> None:
        text = bytes(self._buffer)
        try:
            if self._before_string is None:
                rest = self._validate_values(text)
            else:
                rest = self._validate_string(text, self._before_string, final)
        except ValueError:  # also of orjson
            self._refused = True
            return
        self._buffer = bytearray(rest)

    def _validate_values(self, text: bytes) -> bytes:
        """Validate up to the last comma between two values. Returns the rest. Raises ValueError."""
        # A backslash outside of strings makes a wrong mask, but is never valid.
        masked = text.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in text else text
        parts = masked.split(b'"')  # every other one is the inside of a string
        cut, between = _last_comma(parts)
        if cut:
            opened = _opened(self._open)
            self._open = _open_after(self._open, between)
            orjson.loads(opened + text[:cut] + _closed(self._open))
        rest = text[cut:]
        tail_bytes = len(parts[-1]) if len(parts) % 2 == 0 else 0
        if len(rest) - tail_bytes > MAX_UNCUT_BYTES:
            raise ValueError("no comma for too long")
        if tail_bytes > LONG_BYTES:
            self._before_string = rest[:-tail_bytes]
            rest = rest[-tail_bytes:]
        self._wanted_bytes = PIECE_BYTES if self._before_string is not None else max(PIECE_BYTES, 2 * len(rest))
        return rest

    def _validate_string(self, text: bytes, before: bytes, final: bool) -> bytes:
        """Validate the inside of a string as far as it goes. Returns the rest. Raises ValueError."""
        if not final:
            cut = safe_cut(text, 0, len(text) - _LOOK_AHEAD_BYTES)
            if _is_inside(text[:cut]):
                return text[cut:]
        end = first_unescaped_quote(text)
        orjson.loads(b'"%b"' % text[:end] if end >= 0 else b"")
        self._before_string = None
        return before + text[end:]


def _is_inside(piece: bytes) -> bool:
    """Return whether a string is valid so far and does not end in `piece`."""
    if b'"' not in piece and is_plain(memoryview(piece)):
        return True
    try:
        orjson.loads(b'"%b"' % piece)
    except orjson.JSONDecodeError:
        return False
    return True


def _last_comma(parts: list[bytes]) -> tuple[int, bytes]:
    """The offset after the last comma outside of strings, and the text before it without strings. 0 if there is none.

    `parts`: of the text, split at the quotes of its strings.
    """
    behind = 0
    last = len(parts) - 1
    for index in range(last, -1, -1):
        part = parts[index]
        comma = part.rfind(b",") if index % 2 == 0 else -1
        if comma >= 0:
            length = sum(map(len, parts)) + last
            return length - behind - len(part) + comma + 1, b"".join(parts[:index:2]) + part[:comma]
        behind += len(part) + 1
    return 0, b""


def _open_after(opened: bytes, between: bytes) -> bytes:
    """The brackets that are open after a text without strings. Raises ValueError if they do not fit, or all close."""
    brackets = between.translate(None, _NO_BRACKETS)
    for _ in range(_REDUCTIONS):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    stack = bytearray(opened)
    for bracket in brackets:
        opening = _OPENING.get(bracket)
        if opening is None:
            stack.append(bracket)
        elif stack.pop() != opening if stack else True:
            raise ValueError("a bracket too many, or another one")
    if not stack:
        raise ValueError("a comma outside of brackets")
    return bytes(stack)


def _opened(brackets: bytes) -> bytes:
    """A text that opens the brackets, with a value and a comma in the innermost."""
    if not brackets:
        return b""
    return brackets[:-1].replace(b"{", b'{"":') + (b"[0," if brackets.endswith(b"[") else b'{"":0,')


def _closed(brackets: bytes) -> bytes:
    """A text that closes the brackets, with a value in the innermost."""
    return (b"0" if brackets.endswith(b"[") else b'"":0') + brackets[::-1].translate(_CLOSING)
