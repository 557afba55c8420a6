"""YAML as policy files may use it: a subset in which text means what it looks like, and no text is expensive to read.

Unquoted scalars are null, true, false, a whole number, or text: `no`, `1.5` and `2026-11-24` are text. Duplicate keys,
aliases, tags and further documents are refused.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

from commands.policy_file.errors import PolicyFileError

MAX_CHARS = 128_000_000
MAX_DEPTH = 40
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONSTANTS: Mapping[str, Any] = {"": None, "~": None} | {
    text: value
    for name, value in (("null", None), ("true", True), ("false", False))
    for text in (name, name.title(), name.upper())
}
_LONGEST_LINE = 120
"""The bound of a list in one line, without its indentation."""
_PLAIN = re.compile(r"[A-Za-z/_][A-Za-z0-9/_.-]*(?: [A-Za-z0-9/_.-]+)*")
_WITH_PARTS = (dict, list)
_RESERVED = frozenset({"y", "yes", "n", "no", "on", "off", "true", "false", "null"})
"""Words that some readers of YAML take for something other than text, in any case."""
_OTHER_THAN_ASCII = re.compile("[^ -~]")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")

Place = tuple[str | int, ...]
"""The place of a value in the document: the keys and list indices that lead to it."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A document's value, and its text."""

    value: Any
    text: str = field(repr=False)

    def lines(self, places: Iterable[Place]) -> dict[Place, int]:
        """The lines of these parts, or of the nearest part around each, counted from 1. Reads the text again."""
        keys = tuple(places)
        around = {place[:length] for place in keys for length in range(len(place) + 1)}
        reader = _Reader(yaml.parse(self.text, Loader=_LOADER), frozenset(around))
        reader.document()
        return {place: reader.line(place) for place in keys}


def parse_yaml(text: str) -> Parsed:
    """Raises PolicyFileError with the line of what is not allowed."""
    if len(text) > MAX_CHARS:
        raise PolicyFileError([f"the file has more than {MAX_CHARS} characters"])
    try:
        return Parsed(_Reader(yaml.parse(text, Loader=_LOADER)).document(), text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PolicyFileError([f"line {line}: {error.problem or 'this is not YAML'}"]) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise PolicyFileError([f"this is not YAML: {str(error).splitlines()[0]}"]) from None


class _Reader:
    """Builds a value from the parser's events, with bounded recursion. Keeps the lines of the places that are wanted.

    The line of each place would be more memory than the value.
    """

    def __init__(self, events: Iterator[yaml.Event], places: frozenset[Place] = frozenset()) -> None:
        self._events = events
        self._places = places
        self._lines: dict[Place, int] = {}
        self._path: list[str | int] = []

    def document(self) -> Any:
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise PolicyFileError(["the file is empty"])
        value = self._value(next(self._events))
        next(self._events)  # the end of the document
        further = next(self._events)
        if not isinstance(further, yaml.StreamEndEvent):
            raise _refusal(further, "one document per file")
        return value

    def line(self, place: Place) -> int:
        """The line of the part at `place`, or of the nearest part around it."""
        while place not in self._lines and place:
            place = place[:-1]
        return self._lines.get(place, 1)

    def _value(self, event: yaml.Event) -> Any:
        if self._places:
            self._note(event)
        if len(self._path) > MAX_DEPTH:
            raise _refusal(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(event, "aliases (*name) are not allowed; write the value again")
        if event.tag is not None:
            raise _refusal(event, f"tags ({event.tag}) are not allowed")
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        return self._list() if isinstance(event, yaml.SequenceStartEvent) else self._mapping()

    def _note(self, event: yaml.Event) -> None:
        """Keep the event's line, if its place is wanted and has none yet: a value's key comes first."""
        place = tuple(self._path)
        if place in self._places:
            self._lines.setdefault(place, event.start_mark.line + 1)

    def _list(self) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            self._path.append(len(items))
            items.append(self._value(event))
            self._path.pop()
        return items

    def _mapping(self) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                raise _refusal(event, "a key is plain text")
            if event.value in members:
                raise _refusal(event, f"{event.value!r} is given twice")
            self._path.append(event.value)
            if self._places:
                self._note(event)
            members[event.value] = self._value(next(self._events))
            self._path.pop()
        return members


def _scalar(event: yaml.ScalarEvent) -> Any:
    text: str = event.value
    is_plain = event.implicit[0]
    if not is_plain:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return int(text) if _INTEGER.fullmatch(text) else text


def _refusal(event: yaml.Event, problem: str) -> PolicyFileError:
    return PolicyFileError([f"line {event.start_mark.line + 1}: {problem}"])


def yaml_of(document: dict[str, Any]) -> str:
    """The text of a mapping: blocks, and a list of short flat mappings, such as limits, in one line.

    Text that every reader of YAML takes for that text is written as it is, all other text in double quotes. PyYAML
    would make an event for each value, of which a large workspace has millions.
    """
    lines: list[str] = []
    _write_mapping(document, "", "", lines)
    return "\n".join(lines) + "\n"


def _write_mapping(value: dict[str, Any], first: str, rest: str, lines: list[str]) -> None:
    """`first`: what stands before the first key; `rest`: before the others."""
    before = first
    for name, item in value.items():
        head = f"{before}{_scalar_text(name)}:"
        if item and isinstance(item, dict):
            lines.append(head)
            _write_mapping(item, f"{rest}  ", f"{rest}  ", lines)
        elif item and isinstance(item, list):
            _write_list(item, head, rest, lines)
        else:
            lines.append(f"{head} {_text_of(item)}")
        before = rest


def _write_list(items: Sequence[Any], head: str, rest: str, lines: list[str]) -> None:
    line = _one_line(items) if rest else None
    if line is not None and len(line) <= _LONGEST_LINE:
        lines.append(f"{head} {line}")
        return
    lines.append(head)
    for item in items:
        if item and isinstance(item, dict):
            _write_mapping(item, f"{rest}  - ", f"{rest}    ", lines)
        else:
            lines.append(f"{rest}  - {_text_of(item)}")


def _one_line(items: Sequence[Any]) -> str | None:
    """The list as a line; None if something in it has parts of its own."""
    parts: list[str] = []
    for item in items:
        if not isinstance(item, dict):
            parts.append(_text_of(item))
            continue
        members: list[str] = []
        for name, value in item.items():
            if isinstance(value, _WITH_PARTS):
                return None
            members.append(f"{_scalar_text(name)}: {_scalar_text(value)}")
        parts.append("{" + ", ".join(members) + "}")
    return f"[{', '.join(parts)}]"


def _text_of(value: Any) -> str:
    """A scalar, an empty list or an empty mapping; other lists and mappings as JSON, which is YAML, too."""
    return json.dumps(value) if isinstance(value, _WITH_PARTS) else _scalar_text(value)


@lru_cache(4096, typed=True)
def _scalar_text(value: Any) -> str:
    """A value without parts. Cached: the members of limits, and most of their values, are the same few."""
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return _OTHER_THAN_ASCII.sub(_escaped, json.dumps(value, ensure_ascii=False))


def _escaped(match: re.Match[str]) -> str:
    """Readers of YAML change or refuse some characters that cannot be seen."""
    character = match[0]
    return character if character.isprintable() else f"\\U{ord(character):08x}"
