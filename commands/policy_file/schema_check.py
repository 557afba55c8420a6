"""Checks a value against the part of JSON Schema that `schema.py` uses. Problems come with the place and the remedy."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from commands.policy_file.schema import SCHEMA, Schema
from commands.policy_file.yaml_text import Place

_KINDS: dict[str, tuple[type, str]] = {
    "object": (dict, "a mapping"),
    "array": (list, "a list"),
    "string": (str, 'text; put a number, true, false or null in quotes ("…")'),
    "integer": (int, "a whole number"),
    "number": (int, "a number"),  # others are text here
    "boolean": (bool, "true or false"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A breach of the schema, and its place."""

    place: Place
    message: str


def problems_of(value: Any) -> list[Problem]:
    """Every problem of a policy file's value, in the file's order where possible."""
    return [*_rule_of(SCHEMA).problems(value)]


_NO_PROBLEMS: Sequence[Problem] = ()


def _rule_of(schema: Schema) -> "_Rule":
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    return _Rule(schema)


class _Rule:
    """A part of the schema, read once: a large file has millions of values. Places of problems begin at the value."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._choices = [_Rule(choice) for choice in schema.get("anyOf", ())]
        self._has_const = "const" in schema
        self._enum = schema.get("enum")
        names = schema.get("type", ())
        self._names: Sequence[str] = [names] if isinstance(names, str) else names
        self._kinds = frozenset(_KINDS[name][0] for name in self._names)  # exact types: True is no whole number
        self._min_length = schema.get("minLength", 0)
        self._max_length = schema.get("maxLength", math.inf)
        self._matches = re.compile(schema.get("pattern", "(?s:.*)")).fullmatch
        self._minimum = schema.get("minimum", -math.inf)
        self._maximum = schema.get("maximum", math.inf)
        self._required = schema.get("required", ())
        self._conditions = schema.get("allOf", ())

    def problems(self, value: Any) -> Sequence[Problem]:
        """Every problem of the value and what is inside."""
        message = self._own_problem(value)
        if message is not None:
            return [Problem((), message)]
        if isinstance(value, dict):
            return self._of_object(value)
        return self._of_list(value) if isinstance(value, list) else _NO_PROBLEMS

    def _own_problem(self, value: Any) -> str | None:
        """Return what is wrong with the value itself, whatever is inside."""
        if self._choices:
            messages = [choice._own_problem(value) for choice in self._choices]
            return None if None in messages else messages[0]
        if self._has_const and (value != self._schema["const"] or isinstance(value, bool)):
            return f"must be {self._schema['const']}"
        if self._enum is not None and value not in self._enum:
            return f"must be one of {', '.join(self._enum)}"
        if self._kinds and type(value) not in self._kinds:
            return f"must be {' or '.join(_KINDS[name][1] for name in reversed(self._names))}"
        if isinstance(value, str):
            return self._text_problem(value)
        if isinstance(value, int) and not self._minimum <= value <= self._maximum:
            return f"must be from {self._minimum} to {self._maximum}"
        return None

    def _text_problem(self, value: str) -> str | None:
        if len(value) < self._min_length:
            return "must not be empty"
        if len(value) > self._max_length:
            return f"must have at most {self._max_length} characters"
        return None if self._matches(value) else f"must match {self._schema['pattern']}"

    @cached_property
    def _members(self) -> dict[str, "_Rule | None"]:
        """The rules of members by their names; None for one that no value may have, or that a condition refuses."""
        members = self._schema.get("properties", {})
        return {name: _rule_of(member) if isinstance(member, dict) else None for name, member in members.items()}

    @cached_property
    def _others(self) -> "_Rule | bool":
        """The rule of all other members, or whether there may be some."""
        others = self._schema.get("additionalProperties", True)
        return _rule_of(others) if isinstance(others, dict) else others or "properties" not in self._schema

    @cached_property
    def _item(self) -> "_Rule":
        return _rule_of(self._schema["items"])

    def _of_object(self, value: dict[str, Any]) -> Sequence[Problem]:
        problems: list[Problem] = []
        for name, item in value.items():
            rule = self._members.get(name, self._others)
            if rule is False:
                problems.append(Problem((name,), f"unknown; known are {', '.join(self._members)}"))
            elif isinstance(rule, _Rule) and (inner := rule.problems(item)):
                problems += _inside(name, inner)
        problems += [Problem((), f"{name} is missing") for name in self._required if name not in value]
        for condition in self._conditions:
            provider = condition["if"]["properties"]["provider"]["const"]
            if value.get("provider") == provider:
                problems += _of_provider(condition["then"], value)
        return problems

    def _of_list(self, value: list[Any]) -> Sequence[Problem]:
        most = self._schema.get("maxItems")
        if most is not None and len(value) > most:
            return [Problem((), f"must have at most {most} items")]
        problems: list[Problem] = []
        for index, item in enumerate(value):
            if inner := self._item.problems(item):
                problems += _inside(index, inner)
        return problems


def _inside(part: str | int, problems: Sequence[Problem]) -> Iterator[Problem]:
    """The problems of the value's part."""
    return (Problem((part, *problem.place), problem.message) for problem in problems)


def _of_provider(then: Schema, value: dict[str, Any]) -> Iterator[Problem]:
    for name in then["required"]:
        if name not in value:
            yield Problem((), f"{value['provider']} needs {name}")
    for name in then["properties"]:
        if name in value:
            yield Problem((), f"{value['provider']} has no field {name}")
