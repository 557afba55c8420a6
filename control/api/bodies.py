"""From bytes to validated models: strict JSON, strict fields, and a 400 that names each offending field.

JSON that two parsers could read differently is refused: duplicate names, NaN, lone surrogates, NUL, deep nesting.
"""

import json
import math
from typing import Any, NoReturn

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError

from control.api.problems import Detail, ProblemError, bad_request
from policy.endpoints import PROVIDERS

MAX_BODY_BYTES = 1_048_576
MAX_NESTING = 32


@web.middleware
async def refuse_compressed_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """415, so that every bound on a body holds for what it becomes."""
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    if coding not in ("", "identity") and request.body_exists:
        raise ProblemError(415, "UNSUPPORTED_ENCODING", "Content-Encoding must be identity: send the body uncompressed")
    return await handler(request)


async def read_body(request: web.Request, model: type[BaseModel] | None) -> BaseModel | None:
    """The validated body; None where the operation has none. 400, 413 or 415 otherwise."""
    if model is None:
        return None
    if request.content_type != "application/json":
        raise ProblemError(415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type must be application/json")
    return _validated(model, parse_json(await request.read()), "body")


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
    _check_text(values)
    return _validated(model, values, "query")


def _collected(request: web.Request) -> dict[str, list[str]]:
    return {name: request.query.getall(name) for name in request.query}


def _takes_many(model: type[BaseModel], name: str) -> bool:
    annotation = model.model_fields[name].annotation
    return "list[" in str(annotation) or "tuple[" in str(annotation)


def parse_json(raw: bytes) -> Any:
    """The value; a 400 unless every parser would read the same."""
    try:
        value = json.loads(
            raw.decode(), object_pairs_hook=_without_duplicates, parse_float=_finite, parse_constant=_no_constants
        )
    except (ValueError, RecursionError):
        raise bad_request("The body is not valid JSON") from None
    _check_text(value)
    return value


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise bad_request("A field is given twice", Detail(twice[:255], "given twice"))
    return found


def _no_constants(name: str) -> NoReturn:
    raise ValueError(name)


def _check_text(value: Any) -> None:
    """400 for text that PostgreSQL or UTF-8 cannot hold, and for nesting that no operation knows."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise bad_request("The body is nested too deeply")


def _inside(value: Any) -> list[Any]:
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
