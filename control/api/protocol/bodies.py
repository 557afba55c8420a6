"""Validates bodies and queries: strict JSON, strict fields, and a 400 that names each invalid field.

Refuses JSON that two parsers could read differently: duplicate names, NaN, lone surrogates, NUL, deep nesting. Bounds
on bytes, values, members, digits and depth keep parsing within milliseconds.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, NoReturn, TypeVar, get_args, get_origin

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError

from control.api.protocol.errors import MAX_DETAILS, Detail, ProblemError, bad_request
from control.long_work import CHARS_PER_ITEM, beside
from policy.endpoints import unknown_provider

M = TypeVar("M", bound=BaseModel)
MAX_BODY_BYTES = 1_048_576
MAX_BATCH_BYTES = 16 * 1024 * 1024
"""The most bytes of a batch that a proxy sends."""
MAX_NESTING = 32
MAX_VALUES = 50_000
"""The most values in a whole body. A group of 1000 models with four limits each has 24 000."""
MAX_MEMBERS = 100
"""The most members of one object: the error answer names each unknown member."""
MAX_DIGITS = 1000
"""The most digits of one number: the time to parse it grows with their square."""
_UNCOMPRESSED = ("", "identity", "aws-chunked")
"""`aws-chunked` frames a body of S3's clients; only `control/api/uploads` reads it."""
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)
# Linear: the parts match disjoint bytes, and an unterminated string is one match, not a search from each quote in it.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


@web.middleware
async def refuse_compressed_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a compressed body with 415, so that the bounds hold for what is parsed."""
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    if coding not in _UNCOMPRESSED and request.body_exists:
        raise ProblemError(415, "UNSUPPORTED_ENCODING", "Content-Encoding must be identity: send the body uncompressed")
    return await handler(request)


async def receive(request: web.Request) -> bytes:
    """The body's bytes; 413 or 415 otherwise."""
    if request.content_type != "application/json":
        raise ProblemError(415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type must be application/json")
    return await request.read()


async def receive_batch(request: web.Request) -> bytes:
    """The body of a proxy's call, which may be larger than one of the management API; 413 above its own bound."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MAX_BATCH_BYTES:
            raise ProblemError(413, "REQUEST_ENTITY_TOO_LARGE", f"a batch has at most {MAX_BATCH_BYTES} bytes")
    return bytes(body)


async def read_body(workspace_id: str, text: bytes, model: type[M] | None) -> M | None:
    """The validated body; None where the operation has none. 400 otherwise. A long one is read beside the loop."""
    if model is None:
        return None
    return await beside(workspace_id, len(text) // CHARS_PER_ITEM, partial(valid_body, text, model))


def valid_body(text: bytes, model: type[M]) -> M:
    """Validate a short body at once."""
    value = parse_json(text)
    _check_values(value)
    return _validated(model, value, "body")


def read_query(request: web.Request, model: type[BaseModel] | None) -> BaseModel | None:
    """The validated query parameters. Only list fields may repeat. Beside a cursor, other parameters are ignored."""
    if model is None:
        return None
    cursor = request.query.getall("cursor", [])
    parameters = {"cursor": cursor} if cursor and "cursor" in model.model_fields else _collected(request)
    values: dict[str, Any] = {}
    for name, texts in parameters.items():
        many = name in model.model_fields and _takes_many(model, name)
        if len(texts) > 1 and not many:
            raise bad_request(f"{name} is given more than once", Detail(name, "given more than once"))
        values[name] = texts if many else texts[0]
    _check_values(values)
    return _validated(model, values, "query")


def _collected(request: web.Request) -> dict[str, list[str]]:
    return {name: request.query.getall(name) for name in request.query}


def _takes_many(model: type[BaseModel], name: str) -> bool:
    annotation = model.model_fields[name].annotation
    return "list[" in str(annotation) or "tuple[" in str(annotation)


def parse_json(raw: bytes) -> Any:
    """The parsed value; `_check_values` must still check its parts. 400 when the body is not JSON."""
    _check_count(raw)
    _check_digits(raw)
    try:
        return json.loads(raw.decode(), object_pairs_hook=_without_duplicates, parse_constant=_no_constants)
    except (ValueError, RecursionError):
        raise _not_json() from None


def _check_count(raw: bytes) -> None:
    """Refuse too many values with 400, before the parser makes an object of each.

    Each value but the first follows a comma or a bracket, so their count is an upper bound. When it is exceeded, count
    again without the strings. Unescaped quotes bound the number of strings.
    """
    if _values_at_most(raw) <= MAX_VALUES:
        return
    quotes = raw.count(b'"') - raw.count(b'\\"')
    if quotes > 2 * MAX_VALUES or _values_at_most(_STRINGS.sub(b"", raw)) > MAX_VALUES:
        raise bad_request(f"The body has more than {MAX_VALUES} values", Detail("", f"more than {MAX_VALUES} values"))


def _values_at_most(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{") + 1


def _check_digits(raw: bytes) -> None:
    if _has_long_number(raw) and _has_long_number(_STRINGS.sub(b"", raw)):
        raise bad_request(f"A number of the body has more than {MAX_DIGITS} digits")


def _has_long_number(text: bytes) -> bool:
    return _LONG_NUMBER in text.translate(_AS_ZEROS)


def _not_json() -> ProblemError:
    return bad_request("The body is not valid JSON")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_MEMBERS:
        raise bad_request(
            f"An object of the body has more than {MAX_MEMBERS} members",
            Detail(pairs[MAX_MEMBERS][0][:255], "one member too many"),
        )
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _value in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise bad_request("A field is given twice", Detail(twice[:255], "given twice"))
    return members


def _no_constants(name: str) -> NoReturn:
    raise ValueError(name)


def _check_values(value: Any) -> None:
    """Refuse text that PostgreSQL or UTF-8 cannot hold, numbers beyond a float and too much nesting with 400."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = _inside(level)
        if not level:
            return
    raise bad_request(f"The body is nested too deeply: more than {MAX_NESTING} levels")


def _inside(values: Sequence[Any]) -> list[Any]:
    """Check these values; return what they contain, member names included."""
    contents: list[Any] = []
    for value in values:
        match value:
            case str():
                if "\0" in value or not _is_utf8(value):
                    raise bad_request("Text must not contain NUL characters or lone surrogates")
            case float():
                if math.isinf(value):
                    raise _not_json()
            case dict():
                contents += value.keys()
                contents += value.values()
            case list():
                contents += value
    return contents


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _validated(model: type[M], value: Any, where: str) -> M:
    """The model, or a 400 with the first fifty faults and their number."""
    items, details, count = _validated_items(model, value) if isinstance(value, dict) else ({}, [], 0)
    try:
        valid = model.model_validate(value | items if items else value)
    except ValidationError as error:
        details = _details(error) + details
        count += error.error_count()
    if not count:
        return valid
    raise bad_request(_headline(details[0], count, where), *details[:MAX_DETAILS])


def _validated_items(model: type[BaseModel], value: dict[str, Any]) -> tuple[dict[str, Any], list[Detail], int]:
    """Validate the lists of models in `value` item by item: the models, the faults, and the number of faults.

    Validated at once, a body can have so many faults that reporting them takes 30 ms.
    """
    read: dict[str, list[BaseModel]] = {}
    details: list[Detail] = []
    count = 0
    for name, item_model in _lists_of_models(model).items():
        items = value.get(name)
        for place, item in enumerate(items if isinstance(items, list) else ()):
            try:
                valid = item_model.model_validate(item)
            except ValidationError as error:
                valid = item_model.model_construct()  # a placeholder, so that the list's length is still checked
                count += error.error_count()
                if len(details) < MAX_DETAILS:
                    details += _details(error, name, place)
            read.setdefault(name, []).append(valid)
    return read, details, count


@cache
def _lists_of_models(model: type[BaseModel]) -> Mapping[str, type[BaseModel]]:
    """The fields that are lists of models."""
    models = {name: _listed_model(field.annotation) for name, field in model.model_fields.items()}
    return {name: item_model for name, item_model in models.items() if item_model is not None}


def _listed_model(annotation: Any) -> type[BaseModel] | None:
    inner = get_args(annotation)
    if get_origin(annotation) is list:
        return inner[0] if isinstance(inner[0], type) and issubclass(inner[0], BaseModel) else None
    return next((inner_model for part in inner if (inner_model := _listed_model(part)) is not None), None)


def _details(error: ValidationError, *place: str | int) -> list[Detail]:
    errors = error.errors(include_url=False, include_input=False)
    return [_detail(item, (*place, *item["loc"])) for item in errors]


def _detail(item: Any, place: Sequence[str | int]) -> Detail:
    """The field's path as the caller knows it: `place` without the tags that pydantic adds for unions and names."""
    path = ".".join(str(part) for at, part in enumerate(place) if not _is_tag(place, at))[:255]
    match item["type"]:
        case "extra_forbidden" | "none_required":  # the target's provider does not have this field
            return Detail(path, "unknown field")
        case "missing":
            return Detail(path, "required")
        case "union_tag_not_found":
            return Detail(f"{path}.provider", "required")
        case "union_tag_invalid":
            names = re.findall(r"\w+", item["ctx"]["expected_tags"])
            return Detail(f"{path}.provider", unknown_provider(item["ctx"]["tag"], names))
        case _:
            return Detail(path, str(item["msg"]).removeprefix("Value error, "))


def _is_tag(place: Sequence[str | int], at: int) -> bool:
    """Return whether a part of a place is pydantic's and no field: `[key]`, or the provider behind a target's index."""
    part = place[at]
    is_behind_index = 0 < at < len(place) - 1 and isinstance(place[at - 1], int)
    return part == "[key]" or (is_behind_index and str(part).isupper())


def _headline(first: Detail, count: int, where: str) -> str:
    if not first.field:
        return f"Invalid {where}: {first.message}"
    more = f" (and {count - 1} more)" if count > 1 else ""
    return f"Invalid {where}: {first.field}: {first.message}{more}"
