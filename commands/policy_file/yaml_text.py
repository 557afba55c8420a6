"""YAML as policy files may use it: a subset in which text means what it looks like, and no text is expensive to read.

Unquoted scalars are null, true, false, a whole number, or text: `no`, `1.5` and `2026-11-24` are text. Duplicate keys,
aliases, tags and further documents are refused.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from commands.policy_file.errors import PolicyFileError

MAX_CHARS = 16_000_000
MAX_DEPTH = 40
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONSTANTS: Mapping[str, Any] = {"": None, "~": None} | {
    text: value
    for name, value in (("null", None), ("true", True), ("false", False))
    for text in (name, name.title(), name.upper())
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})")

Place = tuple[str | int, ...]
"""Where a value stands in the document: the keys and list indices that lead to it."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A document's value, and the line of each part of it, counted from 1."""

    value: Any
    lines: Mapping[Place, int] = field(repr=False)

    def line(self, place: Place) -> int:
        """The line of the part at `place`, or of the nearest part around it."""
        while place not in self.lines and place:
            place = place[:-1]
        return self.lines.get(place, 1)


def parse_yaml(text: str) -> Parsed:
    """Raises PolicyFileError with the line of what is not allowed."""
    if len(text) > MAX_CHARS:
        raise PolicyFileError([f"the file has more than {MAX_CHARS} characters"])
    try:
        return _Reader(yaml.parse(text, Loader=_LOADER)).document()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PolicyFileError([f"line {line}: {error.problem or 'this is not YAML'}"]) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise PolicyFileError([f"this is not YAML: {str(error).splitlines()[0]}"]) from None


class _Reader:
    """Builds a value from the parser's events, with bounded recursion."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._lines: dict[Place, int] = {}

    def document(self) -> Parsed:
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise PolicyFileError(["the file is empty"])
        value = self._value(next(self._events), ())
        next(self._events)  # the end of the document
        further = next(self._events)
        if not isinstance(further, yaml.StreamEndEvent):
            raise _refusal(further, "one document per file")
        return Parsed(value, self._lines)

    def _value(self, event: yaml.Event, place: Place) -> Any:
        self._lines.setdefault(place, event.start_mark.line + 1)
        if len(place) > MAX_DEPTH:
            raise _refusal(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(event, "aliases (*name) are not allowed; write the value again")
        if event.tag is not None:
            raise _refusal(event, f"tags ({event.tag}) are not allowed")
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        return self._list(place) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(place)

    def _list(self, place: Place) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self._value(event, (*place, len(found))))
        return found

    def _mapping(self, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                raise _refusal(event, "a key is plain text")
            if event.value in found:
                raise _refusal(event, f"{event.value!r} is given twice")
            self._lines[*place, event.value] = event.start_mark.line + 1
            found[event.value] = self._value(next(self._events), (*place, event.value))
        return found


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
