"""Compares JSON values with the types of the vendors' SDKs, strictly: no unknown member, no required one missing.

The SDKs themselves are lenient (they accept any JSON), so their own parsing proves nothing about a shape.
"""

import types
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import get_type_hints, is_typeddict


class Mismatch(NamedTuple):
    """`path` is dotted, as in `messages.0.content`; it is "" for the value itself."""

    path: str
    problem: str


def mismatches(value: Any, kind: Any, path: str = "") -> list[Mismatch]:
    """All differences between a JSON value and an SDK type: a pydantic model, a TypedDict, or an annotation of them."""
    kind = _bare(kind)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _of_union(value, get_args(kind), path)
    if origin is Literal:
        return [] if value in get_args(kind) else [Mismatch(path, f"must be one of {get_args(kind)}, not {value!r}")]
    if origin is dict:
        return _of_dict(value, get_args(kind)[1], path)
    if origin is not None:  # a list, an Iterable or the SDK's own sequence type
        return _of_list(value, get_args(kind)[0], path)
    if is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return _of_members(value, kind, path)
    return _of_scalar(value, kind, path)


def members(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The type of each member, and whether it is required."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        return {field.alias or name: (field.annotation, field.is_required()) for name, field in fields}
    hints = get_type_hints(kind, include_extras=True)
    return {name: (hint, _is_required(hint)) for name, hint in hints.items()}


def _bare(kind: Any) -> Any:
    """The type without its annotations."""
    while get_origin(kind) in (Annotated, Required, NotRequired):
        kind = get_args(kind)[0]
    return getattr(kind, "__value__", kind)


def _is_required(hint: Any) -> bool:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_origin(hint) is Required


def _of_union(value: Any, kinds: tuple[Any, ...], path: str) -> list[Mismatch]:
    """The mismatches with the kind that fits best: the one that goes wrong at the deepest place."""
    alternatives = [mismatches(value, kind, path) for kind in kinds]
    return min(alternatives, key=lambda one: (bool(one), -max((m.path.count(".") for m in one), default=0), len(one)))


def _of_dict(value: Any, kind: Any, path: str) -> list[Mismatch]:
    if not isinstance(value, dict):
        return [Mismatch(path, "must be an object")]
    return [mismatch for name, member in value.items() for mismatch in mismatches(member, kind, _join(path, name))]


def _of_list(value: Any, kind: Any, path: str) -> list[Mismatch]:
    if not isinstance(value, list):
        return [Mismatch(path, "must be an array")]
    return [mismatch for n, item in enumerate(value) for mismatch in mismatches(item, kind, _join(path, str(n)))]


def _of_members(value: Any, kind: Any, path: str) -> list[Mismatch]:
    if not isinstance(value, dict):
        return [Mismatch(path, "must be an object")]
    return list(_each_member(value, members(kind), path))


def _each_member(value: dict[str, Any], members: dict[str, tuple[Any, bool]], path: str) -> Iterator[Mismatch]:
    for name in value.keys() - members.keys():
        yield Mismatch(_join(path, name), "is not a member of this object")
    for name, (kind, required) in members.items():
        if name in value:
            yield from mismatches(value[name], kind, _join(path, name))
        elif required:
            yield Mismatch(_join(path, name), "is required")


def _of_scalar(value: Any, kind: Any, path: str) -> list[Mismatch]:
    if kind in (Any, object):
        return []
    if kind is None or kind is types.NoneType:
        fits = value is None
    elif kind in (int, float):
        fits = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    elif kind is dict:
        fits = isinstance(value, dict)
    elif kind in (bool, str, datetime):
        fits = isinstance(value, bool if kind is bool else str)
    else:
        fits = False  # a type that JSON cannot express, as in `str | bytes`
    return [] if fits else [Mismatch(path, f"must be {getattr(kind, '__name__', kind)}, not {value!r}")]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
