"""Finds members of a JSON text by their place as the text arrives, and replaces the value of `model`.

Pure. Looks at the members of the outermost objects (the elements of an outermost array are such), and of one object
directly in them; skips over strings and all other values. The text need not be valid: what a parser refuses (`NaN`, an
end that is cut off, more texts behind the first) is read as far as its brackets and strings tell.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from proxy.json_text.lenient_json import parse_leniently
from proxy.json_text.member_spans import LONGEST_NAME_BYTES, depth_changes, masked_escapes

PIECE_BYTES = 4 << 10
MAX_VALUE_BYTES = 64 << 10
"""Largest value that is read. A larger one is only reported as present."""
UNREAD = object()
"""Marker in place of a value that is too large, or no JSON."""
_MARK = re.compile(rb'["\[\]{},:]')
_QUOTE, _COMMA, _COLON, _OBJECT, _LIST = b'",:{['
_WHITESPACE = b" \t\r\n"
_VALUE_ENDS = (b"}", b"]", b'"')
"""A value that is cut off behind one of these may be complete; a number or a word may go on."""
_MODEL = "model"
_NOTHING = 0
_STRING = 1
_VALUE = 2
"""Kinds of text that are passed over: nothing, a string up to its quote, another value up to its end."""

Json = dict[str, Any]


class Wanted(NamedTuple):
    """Members to find, and members to replace."""

    names: frozenset[str]
    holder: str | None = None
    """The member whose object may hold them too."""
    model: bytes | None = None
    """JSON text that replaces the value of each member `model`; None to replace nothing."""


class Capture:
    """Bytes that arrive in pieces, up to a bound."""

    __slots__ = ("_bytes", "_most", "_pieces")

    def __init__(self, most: int) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._most = most

    def add(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if self._bytes <= self._most:
            self._pieces.append(piece)

    def whole(self) -> bytes | None:
        """All bytes; None if they were too many."""
        return b"".join(self._pieces) if self._bytes <= self._most else None


class MemberScanner:
    """Feed it the text, and pass on what it returns. Calls `listener` with the members of each outermost object.

    Members of the holder are in an object of its own there.
    """

    __slots__ = (
        *("_awaits_value", "_backslash", "_base", "_copied_to", "_depth", "_dropping", "_holder", "_in_string"),
        *("_in_value", "_key", "_key_start", "_listener", "_members", "_piece", "_search", "_value", "_value_start"),
        "objects",
    )

    def __init__(self, search: Wanted, listener: Callable[[Json], None]) -> None:
        self._search = search
        self._listener = listener
        self.objects = 0
        """Number of outermost objects that are complete."""
        self._members: Json = {}
        """Members of the current outermost object that were found."""
        self._holder: Json | None = None
        """Members of its holder that were found, while the text is inside of that."""
        self._base = self._depth = 0
        """The open brackets: around the outermost objects (1 in an array), and in all."""
        self._in_string = self._in_value = False
        """True inside a string; true after the colon of a member."""
        self._key: Capture | None = None
        """The latest key of a watched object, as it is written."""
        self._value: Capture | None = None
        """The value of a wanted member, as far as it came."""
        self._awaits_value = False
        """True if a value is to be replaced that has not begun yet."""
        self._dropping = _NOTHING
        """Kind of a replaced value's bytes that are passed over."""
        self._backslash = b""
        """A last byte whose escape is not complete."""
        self._piece = b""
        self._copied_to = self._key_start = self._value_start = 0
        """Offsets in the piece: up to where it is passed on, and where key and value go on."""

    def feed(self, data: bytes) -> bytes:
        """Look at the next bytes. Returns them, and holds back at most one."""
        data = self._backslash + data
        self._backslash = b""
        out: list[bytes] = []
        at = 0
        while at < len(data):
            self._piece = data[at : at + PIECE_BYTES]
            masked = masked_escapes(self._piece)
            if masked.endswith(b"\\"):  # it must not end in an escape
                self._piece = data[at : at + PIECE_BYTES + 1]
                masked = masked_escapes(self._piece)
            at += len(self._piece)
            if masked.endswith(b"\\"):
                self._backslash = b"\\"
                self._piece = self._piece[:-1]
                masked = masked[:-1]
            self._pass_over(masked, out)
        return b"".join(out)

    def end(self) -> bytes:
        """The rest of the text. An object that is cut off is found as far as it came."""
        rest = b"" if self._dropping else self._backslash
        is_complete = self._piece.endswith(_VALUE_ENDS) and not self._in_string
        if self._in_value and is_complete and self._depth == self._watched_depth:
            self._piece = b""
            self._value_start = 0
            self._end_value(0)
        if self._members:
            self._end_object()
        return rest

    @property
    def _watched_depth(self) -> int:
        return self._base + (1 if self._holder is None else 2)

    def _pass_over(self, masked: bytes, out: list[bytes]) -> None:
        """Look at a piece, closely only if a member of a watched object may begin or end in it."""
        parts = masked.split(b'"')
        change, lowest = depth_changes(b"".join(parts[self._in_string :: 2]))
        self._copied_to = self._key_start = self._value_start = 0
        if self._awaits_value:
            self._replace_value(masked, 0, out)
        if self._depth + lowest > self._watched_depth:
            self._depth += change
            self._in_string ^= len(parts) % 2 == 0
        else:
            self._look_closely(masked, out)
        if self._key is not None and self._in_string and not self._in_value:
            self._key.add(self._piece[self._key_start :])
        if self._value is not None:
            self._value.add(self._piece[self._value_start :])
        if not self._dropping:
            out.append(self._piece[self._copied_to :])

    def _look_closely(self, masked: bytes, out: list[bytes]) -> None:
        at = -1
        while True:
            if self._in_string:
                at = masked.find(b'"', at + 1)
            else:
                mark = _MARK.search(masked, at + 1)
                at = mark.start() if mark is not None else -1
            if at < 0:
                return
            byte = masked[at]
            if byte == _QUOTE:
                self._pass_quote(at)
            elif byte in b"[{":
                self._open(byte)
            elif byte in b"]}":
                self._close(at)
            elif self._depth == self._watched_depth:
                if byte == _COMMA:
                    self._end_value(at)
                elif self._key is not None and not self._in_value:
                    self._begin_value(masked, at + 1, out)

    def _pass_quote(self, at: int) -> None:
        self._in_string = not self._in_string
        if self._in_value or self._depth != self._watched_depth:
            if self._dropping == _STRING and not self._in_string:
                self._dropping = _NOTHING
                self._copied_to = at + 1
            return
        if self._in_string:
            self._key = Capture(LONGEST_NAME_BYTES)
            self._key_start = at
        elif self._key is not None:
            self._key.add(self._piece[self._key_start : at + 1])

    def _open(self, bracket: int) -> None:
        self._depth += 1
        level = self._depth - self._base
        if self._depth == 1 and bracket == _LIST:
            self._base = 1
        elif level == 1:
            self._members = {}
            self._key = None
            self._in_value = False
        elif level == 2 and bracket == _OBJECT and self._in_value and self._key_name() == self._search.holder:
            self._holder = self._members[self._search.holder or ""] = {}
            self._key = None
            self._in_value = False

    def _close(self, at: int) -> None:
        if self._depth == self._watched_depth:
            self._end_value(at)
            if self._holder is not None:
                self._holder = None
                self._in_value = True  # the holder's own value ends with the next comma
            else:
                self._end_object()
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._base = 0

    def _end_object(self) -> None:
        self.objects += 1
        members = self._members
        self._members = {}
        self._holder = None
        self._listener(members)

    def _begin_value(self, masked: bytes, at: int, out: list[bytes]) -> None:
        self._in_value = True
        name = self._key_name()
        if name in self._search.names:
            self._value = Capture(MAX_VALUE_BYTES)
            self._value_start = at
        if name == _MODEL and self._search.model is not None:
            self._replace_value(masked, at, out)

    def _replace_value(self, masked: bytes, at: int, out: list[bytes]) -> None:
        """Pass the replacement on where the value begins, behind its white space."""
        start = len(masked) - len(masked[at:].lstrip(_WHITESPACE))
        self._awaits_value = start == len(masked)
        if not self._awaits_value and self._search.model is not None:
            out += self._piece[self._copied_to : start], self._search.model
            self._dropping = _STRING if masked[start] == _QUOTE else _VALUE

    def _end_value(self, at: int) -> None:
        self._awaits_value = False
        if self._dropping:
            self._dropping = _NOTHING
            self._copied_to = at
        if self._value is not None:
            self._value.add(self._piece[self._value_start : at])
            self._keep(self._value.whole())
        self._value = self._key = None
        self._in_value = False

    def _keep(self, value: bytes | None) -> None:
        container = self._members if self._holder is None else self._holder
        name = self._key_name()
        container[name] = UNREAD if value is None else _parsed(value)

    def _key_name(self) -> str:
        raw = self._key.whole() if self._key is not None else None
        if raw is None:
            return ""
        if b"\\" not in raw:
            return raw[1:-1].decode("utf-8", "replace")
        try:
            name: str = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return ""
        return name


def _parsed(value: bytes) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        pass
    try:
        return parse_leniently(value)
    except ValueError:
        return UNREAD
