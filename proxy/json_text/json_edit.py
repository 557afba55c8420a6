"""Changes members of a JSON object without re-encoding the rest: all other bytes stay as they were sent.

Pure. Every function takes a text that orjson has accepted, together with the parsed value, so it need not validate.
Members' names consist of letters and underscores.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from proxy.json_text.json_bounds import MAX_MEMBERS
from proxy.json_text.large_json import Outline
from proxy.json_text.segmented_body import RequestBody, SegmentedBody

Json = dict[str, Any]
Change = tuple[int, int, bytes]
"""Start, end, and the text that replaces the bytes between them."""

# Every repetition is possessive: no backtracking, so no stack, and time linear in the text.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# Everything up to and including the next bracket. Matches at any offset, so a search never retries at the next one.
_UP_TO_BRACKET = re.compile(
    rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)[^"{}\[\]]*+)*+([{}\[\]]|\Z)', re.DOTALL
)
_SCALAR = re.compile(rb"[^\s,\]}]++")
_SPACE = re.compile(rb"\s*+")
_COLON = re.compile(rb"\s*+:\s*+")
_COLON_AND_STRING = re.compile(rb'\s*+:\s*+("[^"\\]*+")')
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")
_BACKSLASH = ord("\\")
_WHITESPACE = b" \t\r\n"

LONG_BYTES = 64 << 10
"""Above this size a pass over the text costs more than the function calls that avoid it."""
LONGEST_KEY_BYTES = 128
"""Longest key that can be one of the names that are edited, even written in escapes."""
LONGEST_KNOWN = 256
"""Longest value that is kept with its replacement, in characters."""
KNOWN_REPLACEMENTS = 8192
"""Two for each of some four thousand slugs, as many as a worker's cache of policy has; 6 MB."""
BYTES_PER_QUOTE = 512
FREE_QUOTES = 64
"""A walk from quote to quote stops after `FREE_QUOTES` if there is more than one quote in `BYTES_PER_QUOTE` bytes."""


class Member(NamedTuple):
    """Offsets of a member of an object: the first byte of its key, and its value from `start` to `end`."""

    key: int
    start: int
    end: int


def edit_members(raw: bytes, parsed: Json, changes: Mapping[str, bytes], outline: Outline | None = None) -> RequestBody:
    """Return `raw` with top-level members set to the given JSON texts; new members come first.

    Equals re-encoding `parsed` with those changes. If a changed name occurs twice, both are set or the whole text is
    re-encoded: a server that reads the first one must see the same value as a server that reads the last.
    """
    if not changes:
        return raw
    if outline is not None:
        if not outline.key_spans:
            return outline.restored_body(bytes(edit_members(outline.text, parsed, changes)))
        return _edit_long(raw, parsed, changes, outline)
    if len(raw) >= LONG_BYTES:
        return _edit_long(raw, parsed, changes, None)
    edited = ""
    for name, text in changes.items():
        if edited:  # mostly there is one change
            parsed = parsed | {edited: orjson.Fragment(changes[edited])}
        raw = edit_member(raw, parsed, name, text)
        edited = name
    return raw


def edit_member(raw: bytes, parsed: Json, name: str, text: bytes) -> bytes:
    """`edit_members` for a single change, as nearly every answer needs."""
    if len(raw) < LONG_BYTES:
        before = parsed.get(name)
        if before.__class__ is str and len(before) <= LONGEST_KNOWN:
            edited = replacement(name, before, text).edited(raw)
            if edited is not None:
                return edited
    change = _locate_change(raw, parsed, name, text, b"," if parsed else b"")
    if change is None:
        return orjson.dumps(parsed | {name: orjson.Fragment(text)})
    start, end, text = change
    if len(raw) < LONG_BYTES:
        return raw[:start] + text + raw[end:]
    return b"".join((raw[:start], text, memoryview(raw)[end:]))  # copies a long text once, not twice


class Replacement:
    """Replaces one known string, the value of a top-level member, in the two spellings of nearly all texts."""

    __slots__ = ("_after", "_before", "_key", "_spaced", "_spaced_after")

    def __init__(self, name: str, before: str, text: bytes) -> None:
        """`before`: the member's value. `text`: the JSON text that replaces it."""
        value = orjson.dumps(before)
        self._key = key = b'"%b"' % name.encode()
        self._before = b"%b:%b" % (key, value)
        self._after = b"%b:%b" % (key, text)
        self._spaced = b"%b: %b" % (key, value)
        self._spaced_after = b"%b: %b" % (key, text)

    def edited(self, raw: bytes) -> bytes | None:
        """Edit a short text that has the member; None if it must be looked at more closely.

        If the quoted name occurs only once at any depth, and no key is written in escapes, it can only be the member's
        key. Then what follows it is the value, which is replaced if it is the known one.
        """
        if raw.count(self._key) != 1 or (_BACKSLASH in raw and _may_escape_letters(raw)):
            return None
        if self._before in raw:
            return raw.replace(self._before, self._after, 1)
        return raw.replace(self._spaced, self._spaced_after, 1) if self._spaced in raw else None


replacement = lru_cache(KNOWN_REPLACEMENTS)(Replacement)
"""The same, cached: the members that are edited have few values."""


def _edit_long(raw: bytes, parsed: Json, changes: Mapping[str, bytes], outline: Outline | None) -> RequestBody:
    """`edit_members` for a long text: makes all changes in one pass and copies no unchanged byte."""
    edits: list[Change] = []
    for name, text in changes.items():
        if outline is not None and name in parsed:
            edits += [(member.start, member.end, text) for member in _members_in_outline(raw, outline, name)]
            continue
        change = _locate_change(raw, parsed, name, text, b"," if parsed or edits else b"")
        if change is None:
            return orjson.dumps(parsed | {name: orjson.Fragment(text) for name, text in changes.items()})
        edits.insert(0, change)  # new members share one offset: the one added last comes first
    parts: list[bytes | memoryview] = []
    copied_to = 0
    view = memoryview(raw)
    for start, end, text in sorted(edits, key=itemgetter(0)):
        parts += view[copied_to:start], text
        copied_to = end
    return SegmentedBody(*parts, view[copied_to:])


def _locate_change(raw: bytes, parsed: Json, name: str, text: bytes, comma: bytes) -> Change | None:
    """The change that makes `text` the value of member `name`; None if the name has no single position.

    `comma` separates a new member from the existing ones; empty if there are none.
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
    # If the quoted name occurs only once at any depth, it can only be the member's key.
    match = _COLON_AND_STRING.match(raw, at + len(key)) if at >= 0 else None
    if match is not None:
        return *match.span(1), text
    member = find_member(raw, parsed, name)
    return (member.start, member.end, text) if member else None


def remove_member(raw: bytes, parsed: Json, name: str) -> bytes:
    """Return `raw` without its top-level member `name` and one comma: the one before it, or else the one after it."""
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
    """The only top-level member called `name`. None if there is none, more than one, or too many members to walk."""
    if name not in parsed:
        return None
    if outline is not None and outline.key_spans:
        outlined = list(_members_in_outline(raw, outline, name))
        return outlined[0] if len(outlined) == 1 else None
    key = b'"%b"' % name.encode()
    if not _may_escape_letters(raw):
        unique_member = _only_member_with_key(raw, key)
        if unique_member is not None:
            return unique_member
    hits: list[Member] = []
    for number, (key_name, member) in enumerate(walk_members(raw)):
        if key_name == name:
            hits.append(member)
        if len(hits) > 1 or number > MAX_MEMBERS:  # names may repeat, so there may be more than `parsed` has
            return None
    return hits[0] if hits else None


def _members_in_outline(raw: bytes, outline: Outline, name: str) -> Iterator[Member]:
    """Yield the top-level members called `name`. White space after a value counts as part of it."""
    for (key, key_end), (following, _) in pairwise((*outline.key_spans, (len(raw), 0))):
        if key_end - key <= LONGEST_KEY_BYTES and orjson.loads(raw[key:key_end]) == name:
            mark = b"," if following < len(raw) else b"}"
            yield Member(key, _match_end(_COLON, raw, key_end), raw.rindex(mark, key_end, following))


def walk_members(raw: bytes) -> Iterator[tuple[str, Member]]:
    """Yield name and offsets of each member of the top-level object; skips over nested values."""
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
    """Offset after the value that begins at `start`. Raises ValueError if the text is cut off before."""
    first = raw[start : start + 1]
    if first == b'"':
        return _match_end(_STRING, raw, start)
    if first not in (b"{", b"["):
        return _match_end(_SCALAR, raw, start)
    depth = 0
    for piece in _UP_TO_BRACKET.finditer(raw, start):
        mark = piece[1]
        if not mark:
            break
        depth += 1 if mark in b"{[" else -1
        if not depth:
            return piece.end()
    raise ValueError("the JSON text breaks off")


def _may_escape_letters(raw: bytes) -> bool:
    """Return whether a letter may be written as an escape, so that a key's bytes may differ from its name."""
    # In a long prompt, searching one byte is fifty times as fast as four, and four a few times as fast as a regex.
    return _BACKSLASH in raw and raw.rfind(b"\\u00") >= 0 and _ESCAPED_LETTER.search(raw) is not None


def _only_occurrence(raw: bytes, key: bytes) -> int:
    """Offset of the only occurrence of `key` in a long text; -1 if there are several, or if this search gives up.

    Walks from quote to quote: in prose they are rare, and one byte is found thirty times as fast as seven. Source code
    has so many quotes that walking is slower: then it gives up early.
    """
    hit = -1
    at = raw.find(b'"')
    for quotes in count():
        if at < 0:
            return hit
        head = raw[at : at + len(key)]
        if head == key and hit < 0:
            hit = at
        elif head == key or head.find(b"\\u") >= 0 or at < (quotes - FREE_QUOTES) * BYTES_PER_QUOTE:
            return -1
        at = raw.find(b'"', at + 1)
    raise AssertionError


def _only_member_with_key(raw: bytes, key: bytes) -> Member | None:
    """The member with this key, found without a walk if `key` and a colon occur together only once at any depth.

    The caller knows that the member exists and that no key is written in escapes, so a single match must be it.
    """
    at = raw.find(key)
    span: tuple[int, int] | None = None
    while at >= 0:
        colon = _COLON.match(raw, at + len(key))
        if colon is not None:
            if span is not None:
                return None
            span = at, colon.end()
        at = raw.find(key, at + len(key))
    return Member(*span, value_end(raw, span[1])) if span else None


def _match_end(pattern: re.Pattern[bytes], raw: bytes, at: int) -> int:
    match = pattern.match(raw, at)
    if match is None:
        raise ValueError("the JSON text breaks off")
    return match.end()
