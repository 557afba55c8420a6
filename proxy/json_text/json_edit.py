"""Change members of a JSON object without re-encoding the rest: bytes that nobody touched stay as they were sent.

Every function takes text that orjson has already accepted, with what it parsed to, so the scanner may trust the form.
Names are made of letters and underscores.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import count, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from proxy.json_text.json_bounds import MAX_MEMBERS
from proxy.json_text.large_json import Outline
from proxy.json_text.segmented_body import RequestBody, SegmentedBody

Json = dict[str, Any]
Change = tuple[int, int, bytes]
"""The text that takes the place of what stands from the first of two places to the second."""

# Every repetition is possessive: none is given back, so none needs a stack, and time is linear in the text.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# All up to the next bracket, and it; it matches everywhere, so that no search tries one place after another.
_TO_BRACKET = re.compile(
    rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)[^"{}\[\]]*+)*+([{}\[\]]|\Z)', re.DOTALL
)
_SCALAR = re.compile(rb"[^\s,\]}]++")
_SPACE = re.compile(rb"\s*+")
_COLON = re.compile(rb"\s*+:\s*+")
_COLON_AND_TEXT = re.compile(rb'\s*+:\s*+("[^"\\]*+")')
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")
_BACKSLASH = ord("\\")
_WHITESPACE = b" \t\r\n"

LONG_BYTES = 64 << 10
"""From here on, what a pass over a text costs outweighs what a call of a function costs."""
LONGEST_KEY_BYTES = 128
"""No longer key spells a name that we change, in escapes or not."""
BYTES_A_QUOTE = 512
QUOTES_AT_ONCE = 64
"""Quotes that stand closer than this, beyond a few at once, are not worth going to one by one."""


class Member(NamedTuple):
    """Where a member of an object stands: its key's first byte, and its value from `start` to `end`."""

    key: int
    start: int
    end: int


def edit_members(raw: bytes, parsed: Json, changes: Mapping[str, bytes], outline: Outline | None = None) -> RequestBody:
    """`raw` with top-level members set to the given JSON text; those that are not there yet come first.

    Means what re-encoding `parsed` with those changes means. Where a changed name stands twice it is set in both
    places, or all is re-encoded: a reader that takes the first of two must be told what one is that takes the last.
    """
    if not changes:
        return raw
    if outline is not None and not outline.key_spans:
        return outline.restored_body(bytes(edit_members(outline.text, parsed, changes)))
    if outline is not None or len(raw) >= LONG_BYTES:
        return _edit_long(raw, parsed, changes, outline)
    for name, text in changes.items():
        raw = edit_member(raw, parsed, name, text)
        if len(changes) > 1:
            parsed = parsed | {name: orjson.Fragment(text)}
    return raw


def edit_member(raw: bytes, parsed: Json, name: str, text: bytes) -> bytes:
    """`edit_members` with the one change that nearly every answer takes."""
    if len(raw) < LONG_BYTES and name in parsed and (edited := _edit_only_occurrence(raw, name, text)) is not None:
        return edited
    change = _locate_change(raw, parsed, name, text, b"," if parsed else b"")
    if change is None:
        return orjson.dumps(parsed | {name: orjson.Fragment(text)})
    start, end, text = change
    if len(raw) < LONG_BYTES:
        return raw[:start] + text + raw[end:]
    return b"".join((raw[:start], text, memoryview(raw)[end:]))  # what is long is copied once, not twice


def _edit_only_occurrence(raw: bytes, name: str, text: bytes) -> bytes | None:
    """A short text whose member `name` has a plain string for its value, as nearly all have; None where it is not so.

    Where the key is the only one at any depth, and no value either, nothing else could be the member's.
    """
    key = f'"{name}"'.encode()
    parts = raw.split(key)
    if len(parts) != 2 or (_BACKSLASH in raw and _may_escape_letters(raw)):
        return None
    before, after = parts
    value = after.split(b'"', 2)
    if len(value) != 3 or value[0].strip() != b":" or _BACKSLASH in value[1]:
        return None
    return b"".join((before, key, value[0], text, value[2]))


def _edit_long(raw: bytes, parsed: Json, changes: Mapping[str, bytes], outline: Outline | None) -> RequestBody:
    """`edit_members` in one go: what stays of `raw` is not copied at all."""
    found: list[Change] = []
    for name, text in changes.items():
        if outline is not None and name in parsed:
            found += [(member.start, member.end, text) for member in _members_in_outline(raw, outline, name)]
            continue
        change = _locate_change(raw, parsed, name, text, b"," if parsed or found else b"")
        if change is None:
            return orjson.dumps(parsed | {name: orjson.Fragment(text) for name, text in changes.items()})
        found.insert(0, change)  # what comes first in the end was put there last
    parts: list[bytes | memoryview] = []
    done, view = 0, memoryview(raw)
    for start, end, text in sorted(found, key=itemgetter(0)):
        parts += view[done:start], text
        done = end
    return SegmentedBody(*parts, view[done:])


def _locate_change(raw: bytes, parsed: Json, name: str, text: bytes, comma: bytes) -> Change | None:
    """Where `text` goes so that the member `name` has it as its value; None where that is no single place.

    `comma`: what separates a member that is not there yet from those that are.
    """
    if name not in parsed:
        start = raw.index(b"{") + 1
        return start, start, b'"%b":%b%b' % (name.encode(), text, comma)
    key = b'"%b"' % name.encode()
    at = _only_occurrence(raw, key) if len(raw) > LONG_BYTES else -1
    if at < 0 and (_BACKSLASH not in raw or not _may_escape_letters(raw)):
        at = raw.rfind(key)
        if raw.find(key, 0, at) >= 0:
            at = -1
    # Where the key is the only one at any depth, and no value either, nothing else could be the member's.
    found = _COLON_AND_TEXT.match(raw, at + len(key)) if at >= 0 else None
    if found is not None:
        return *found.span(1), text
    member = find_member(raw, parsed, name)
    return (member.start, member.end, text) if member else None


def remove_member(raw: bytes, parsed: Json, name: str) -> bytes:
    """`raw` without its top-level member `name`, and without one comma: the one before it, else the one after it."""
    if name not in parsed:
        return raw
    member = find_member(raw, parsed, name)
    if member is None:
        return orjson.dumps({key: value for key, value in parsed.items() if key != name})
    before = member.key - 1
    while raw[before] in _WHITESPACE:
        before -= 1
    if raw[before] == ord(","):
        return raw[:before] + raw[member.end :]
    after = _match_end(_SPACE, raw, member.end)
    return raw[: member.key] + raw[after + 1 if raw[after : after + 1] == b"," else member.end :]


def find_member(raw: bytes, parsed: Json, name: str, outline: Outline | None = None) -> Member | None:
    """The one top-level member called `name`; None when there is none or more than one, or too many to look at each."""
    if name not in parsed:
        return None
    if outline is not None and outline.key_spans:
        outlined = list(_members_in_outline(raw, outline, name))
        return outlined[0] if len(outlined) == 1 else None
    key = b'"%b"' % name.encode()
    if not _may_escape_letters(raw):
        found = _only_member_with_key(raw, key)
        if found is not None:
            return found
    hits: list[Member] = []
    for number, (called, member) in enumerate(walk_members(raw)):
        if called == name:
            hits.append(member)
        if len(hits) > 1 or number > MAX_MEMBERS:  # names may stand twice: there may be more of them than are parsed
            return None
    return hits[0] if hits else None


def _members_in_outline(raw: bytes, outline: Outline, name: str) -> Iterator[Member]:
    """The top-level members called `name`; what is white space behind a value counts as part of it."""
    for (key, key_end), (following, _) in pairwise((*outline.key_spans, (len(raw), 0))):
        if key_end - key <= LONGEST_KEY_BYTES and orjson.loads(raw[key:key_end]) == name:
            mark = b"," if following < len(raw) else b"}"
            yield Member(key, _match_end(_COLON, raw, key_end), raw.rindex(mark, key_end, following))


def walk_members(raw: bytes) -> Iterator[tuple[str, Member]]:
    """Walk the top-level object in `raw`, skipping over nested values."""
    at = _match_end(_SPACE, raw, raw.index(b"{") + 1)
    while raw[at : at + 1] == b'"':
        key_end = value_end(raw, at)
        start = _match_end(_COLON, raw, key_end)
        end = value_end(raw, start)
        yield orjson.loads(raw[at:key_end]), Member(at, start, end)
        at = _match_end(_SPACE, raw, end)
        if raw[at : at + 1] == b",":
            at = _match_end(_SPACE, raw, at + 1)


def value_end(raw: bytes, start: int) -> int:
    """Where the value that begins at `start` ends. ValueError when the text breaks off before."""
    first = raw[start : start + 1]
    if first == b'"':
        return _match_end(_STRING, raw, start)
    if first not in (b"{", b"["):
        return _match_end(_SCALAR, raw, start)
    depth = 0
    for piece in _TO_BRACKET.finditer(raw, start):
        mark = piece[1]
        if not mark:
            break
        depth += 1 if mark in b"{[" else -1
        if not depth:
            return piece.end()
    raise ValueError("the JSON text breaks off")


def last_object_named(raw: bytes, name: bytes) -> Json | None:
    """What the last key `name` in a fragment of JSON leads to; None when that is not a whole object."""
    at = raw.rfind(b'"%s"' % name)
    if at < 0:
        return None
    try:
        start = _match_end(_COLON, raw, at + len(name) + 2)
        value = orjson.loads(raw[start : value_end(raw, start)])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _may_escape_letters(raw: bytes) -> bool:
    """Whether a letter stands there as an escape, so that a key may look otherwise than it reads."""
    # In a long prompt one byte is found fifty times as fast as four, and four a few times as fast as a pattern.
    return _BACKSLASH in raw and raw.rfind(b"\\u00") >= 0 and _ESCAPED_LETTER.search(raw) is not None


def _only_occurrence(raw: bytes, key: bytes) -> int:
    """Where the only `key` of a long text stands; -1 when it is not the only one, or this is not the way to know.

    Goes from quote to quote: in prose they are rare, and one byte is found thirty times as fast as seven. Source code
    has so many that it is slower: then it ends early.
    """
    found = -1
    at = raw.find(b'"')
    for quotes in count():
        if at < 0:
            return found
        head = raw[at : at + len(key)]
        if head == key and found < 0:
            found = at
        elif head == key or head.find(b"\\u") >= 0 or at < (quotes - QUOTES_AT_ONCE) * BYTES_A_QUOTE:
            return -1
        at = raw.find(b'"', at + 1)
    raise AssertionError


def _only_member_with_key(raw: bytes, key: bytes) -> Member | None:
    """The member of this key, found without a walk when nothing else at any depth could be it.

    The caller knows that it is there. Spelled without escapes it looks like `key`, so a single match is the one.
    """
    at = raw.find(key)
    found: tuple[int, int] | None = None
    while at >= 0:
        colon = _COLON.match(raw, at + len(key))
        if colon is not None:
            if found is not None:
                return None
            found = at, colon.end()
        at = raw.find(key, at + len(key))
    return Member(*found, value_end(raw, found[1])) if found else None


def _match_end(pattern: re.Pattern[bytes], raw: bytes, at: int) -> int:
    match = pattern.match(raw, at)
    if match is None:
        raise ValueError("the JSON text breaks off")
    return match.end()
