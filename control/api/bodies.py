"""From bytes to validated models: strict JSON, strict fields, and a 400 that names each offending field.

JSON that two parsers could read differently is refused: duplicate names, NaN, lone surrogates, NUL, deep nesting. A
body is bounded in bytes, values, members of one object and depth, so that reading one never holds the event loop long.
"""

import asyncio
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError

from control.api.problems import Detail, ProblemError, bad_request
from policy.endpoints import PROVIDERS

MAX_BODY_BYTES = 1_048_576
MAX_NESTING = 32
MAX_VALUES = 50_000
"""In the whole body; a group of 1000 models with four limits each has 24 000."""
MAX_MEMBERS = 100
"""Of one object: what no form knows is told name by name."""
# Linear: no byte fits in two places, and a string without an end is one match too, not a search from each quote in it.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


@web.middleware
async def refuse_compressed_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """415, so that every bound on a body holds for what it becomes."""
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    if coding not in ("", "identity") and request.body_exists:
        raise ProblemError(415, "UNSUPPORTED_ENCODING", "Content-Encoding must be identity: send the body uncompressed")
    return await handler(request)


async def receive(request: web.Request) -> bytes:
    """The body's bytes; 413 or 415 otherwise."""
    if request.content_type != "application/json":
        raise ProblemError(415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type must be application/json")
    return await request.read()


async def read_body(sent: bytes, model: type[BaseModel] | None) -> BaseModel | None:
    """The validated body; None where the operation has none. 400 otherwise."""
    if model is None:
        return None
    value = parse_json(sent)
    await asyncio.sleep(0)  # each of the two may take ten milliseconds
    return _validated(model, value, "body")


def read_query(request: web.Request, model: type[BaseModel] | None) -> BaseModel | None:
    """The validated query parameters. A field that is a list takes repeated ones; with a cursor nothing else counts."""
    if model is None:
        return None
    cursor = request.query.getall("cursor", [])
    given = {"cursor": cursor} if cursor and "cursor" in model.model_fields else _collected(request)
    values: dict[str, Any] = {}
    for name, texts in given.items():
        many = name in model.model_fields and _takes_many(model, name)
        if len(texts) > 1 and not many:
            raise bad_request(f"{name} is given more than once", Detail(name, "given more than once"))
        values[name] = texts if many else texts[0]
    _check_text(values, _in_value)
    return _validated(model, values, "query")


def _collected(request: web.Request) -> dict[str, list[str]]:
    return {name: request.query.getall(name) for name in request.query}


def _takes_many(model: type[BaseModel], name: str) -> bool:
    annotation = model.model_fields[name].annotation
    return "list[" in str(annotation) or "tuple[" in str(annotation)


def parse_json(raw: bytes) -> Any:
    """The value; a 400 unless every parser would read the same."""
    _check_count(raw)
    try:
        value = json.loads(
            raw.decode(), object_pairs_hook=_without_duplicates, parse_float=_finite, parse_constant=_no_constants
        )
    except (ValueError, RecursionError):
        raise bad_request("The body is not valid JSON") from None
    # Text without this escape is as it came, and `decode` has checked that: only the nesting is left to look at.
    _check_text(value, _in_value if b"\\u" in raw or b"\0" in raw else _in_container)
    return value


def _check_count(raw: bytes) -> None:
    """400 for too many values, before a parser makes an object of each.

    Each value but the first follows a comma or a bracket, so counting these gives a bound from above; where that is too
    much, strings are left out of it. Of strings there are no more than quotes that follow no backslash.
    """
    if _values_at_most(raw) <= MAX_VALUES:
        return
    quotes = raw.count(b'"') - raw.count(b'\\"')
    if quotes > 2 * MAX_VALUES or _values_at_most(_STRINGS.sub(b"", raw)) > MAX_VALUES:
        raise bad_request(f"The body has more than {MAX_VALUES} values", Detail("", f"more than {MAX_VALUES} values"))


def _values_at_most(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{") + 1


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_MEMBERS:
        raise bad_request(
            f"An object of the body has more than {MAX_MEMBERS} members",
            Detail(pairs[MAX_MEMBERS][0][:255], "one member too many"),
        )
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise bad_request("A field is given twice", Detail(name[:255], "given twice"))
        found[name] = value
    return found


def _no_constants(name: str) -> NoReturn:
    raise ValueError(name)


def _check_text(value: Any, inside: Callable[[Any], Iterable[Any]]) -> None:
    """400 for text that PostgreSQL or UTF-8 cannot hold, if `inside` looks at it, and for too much nesting."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [inner for outer in level for inner in inside(outer)]
        if not level:
            return
    raise bad_request(f"The body is nested too deeply: more than {MAX_NESTING} levels")


def _in_container(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [inner for inner in value.values() if isinstance(inner, (dict, list))]
    return [inner for inner in value if isinstance(inner, (dict, list))] if isinstance(value, list) else ()


def _in_value(value: Any) -> list[Any]:
    if isinstance(value, str):
        if "\0" in value or not _is_utf8(value):
            raise bad_request("Text must not contain NUL characters or lone surrogates")
        return []
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list) else []


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _validated(model: type[BaseModel], value: Any, where: str) -> BaseModel:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        details = [_detail(item) for item in errors]
        raise bad_request(_headline(details, where), *details[:50]) from None


def _detail(item: Any) -> Detail:
    """The path of the field as the caller wrote it: without the tags that pydantic puts in for a union's choice."""
    path = ".".join(str(part) for part in item["loc"] if part not in PROVIDERS)[:255]
    match item["type"]:
        case "extra_forbidden" | "none_required":  # a field that its target's provider does not know
            return Detail(path, "unknown field")
        case "missing":
            return Detail(path, "required")
        case "union_tag_not_found":
            return Detail(f"{path}.provider", "required")
        case "union_tag_invalid":
            return Detail(f"{path}.provider", f"must be one of {', '.join(PROVIDERS)}")
        case _:
            return Detail(path, str(item["msg"]).removeprefix("Value error, "))


def _headline(details: list[Detail], where: str) -> str:
    first = details[0]
    if not first.field:
        return f"Invalid {where}: {first.message}"
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return f"Invalid {where}: {first.field}: {first.message}{more}"
