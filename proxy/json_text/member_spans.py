"""Finds the members of a large JSON object in slices, without parsing it: their values may be of any kind and number.

Pure. The text must be a JSON object, as `streamed_json.py` tells. Only pieces of it are looked at closely in which a
member of the outermost object begins or ends.
"""

import re
from collections.abc import Generator
from typing import NamedTuple

import orjson

from proxy.json_text.json_bounds import MAX_MEMBERS, TooManyValuesError

PIECE_BYTES = 4 << 10
LONGEST_NAME_BYTES = 1 << 10
"""Names that are written longer than this are cut off."""
_REDUCTIONS = 4
"""Rounds in which innermost pairs of brackets are removed all at once, before the rest is counted one by one."""
_MARK = re.compile(rb'["\[\]{},:]')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class MemberSpan(NamedTuple):
    """A member: its name, and the offsets of its value, which may have white space around it."""

    name: str
    start: int
    end: int


def member_spans(raw: bytes) -> Generator[None, None, list[MemberSpan]]:
    """Return the members of the outermost object, in their order. Raises `TooManyValuesError` above `MAX_MEMBERS`."""
    walk = _Walk(raw)
    at = 0
    while at < len(raw):
        at += walk.pass_over(at)
        yield
    return walk.spans


class _Walk:
    """The position of a walk: the number of open brackets, and the part of a member."""

    __slots__ = ("_depth", "_in_string", "_key", "_raw", "_value_start", "spans")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._depth = 0
        self._in_string = False
        self._key = (0, 0)
        """Start and end of the latest key."""
        self._value_start = -1
        """Start of the current member's value; -1 before its colon."""
        self.spans: list[MemberSpan] = []

    def pass_over(self, at: int) -> int:
        """Walk over the piece at this offset. Returns its size."""
        masked = masked_escapes(self._raw[at : at + PIECE_BYTES])
        if masked.endswith(b"\\"):  # it must not end in an escape
            masked = masked_escapes(self._raw[at : at + PIECE_BYTES + 1])
        parts = masked.split(b'"')
        change, lowest = depth_changes(b"".join(parts[self._in_string :: 2]))
        if self._depth + lowest > 1:
            self._depth += change
            self._in_string ^= len(parts) % 2 == 0
        else:
            self._look_closely(masked, at)
        return len(masked)

    def _look_closely(self, masked: bytes, offset: int) -> None:
        at = 0
        while True:
            if self._in_string:
                at = masked.find(b'"', at)
                has_mark = at >= 0
            else:
                mark = _MARK.search(masked, at)
                has_mark = mark is not None
                at = mark.start() if mark is not None else at
            if not has_mark:
                return
            self._pass_mark(masked[at], offset + at)
            at += 1

    def _pass_mark(self, mark: int, at: int) -> None:
        if mark == ord('"'):
            self._in_string = not self._in_string
            if self._depth == 1 and self._value_start < 0:
                self._key = (at, at) if self._in_string else (self._key[0], at + 1)
        elif mark in b"[{":
            self._depth += 1
        elif mark in b"]}":
            self._depth -= 1
            if self._depth == 0:
                self._end_member(at)
        elif self._depth == 1:
            if mark == ord(","):
                self._end_member(at)
            elif self._value_start < 0:
                self._value_start = at + 1

    def _end_member(self, at: int) -> None:
        if self._value_start < 0:  # the object is empty
            return
        if len(self.spans) >= MAX_MEMBERS:
            raise TooManyValuesError(f"holds more than {MAX_MEMBERS} members")
        self.spans.append(MemberSpan(self._name(), self._value_start, at))
        self._value_start = -1

    def _name(self) -> str:
        start, end = self._key
        if end - start <= LONGEST_NAME_BYTES:
            name: str = orjson.loads(self._raw[start:end])
            return name
        return self._raw[start + 1 : start + LONGEST_NAME_BYTES].decode("utf-8", "replace")


def masked_escapes(piece: bytes) -> bytes:
    """The piece with its escaped quotes and backslashes hidden."""
    return piece.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in piece else piece


def depth_changes(between: bytes) -> tuple[int, int]:
    """Return the change of depth by a text without strings, at its end and at its lowest point."""
    brackets = between.translate(None, _NO_BRACKETS)
    for _ in range(_REDUCTIONS):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    depth = lowest = 0
    for bracket in brackets:
        if bracket in b"[{":
            depth += 1
        else:
            depth -= 1
            lowest = min(lowest, depth)
    return depth, lowest
