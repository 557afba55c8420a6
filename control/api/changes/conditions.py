"""`ETag`, `If-Match` and `If-None-Match` (RFC 9110 8.8.3, 13.1). Resources evaluate conditions in their transaction.

See docs/reference/management-api.md#lost-updates.
"""

import re
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from control.api.protocol.encoding import Encoded, encoded
from control.api.protocol.errors import Detail, bad_request
from control.records.changes.conditions import Condition, Tags

Json = dict[str, Any]
_ETAG = "ETag"
_SAFE = frozenset({"GET", "HEAD"})
_TAG = re.compile(r'(W/)?"([^"\x00-\x20\x7f]*)"')
_GAP = re.compile(r"[ \t]*,[ \t,]*")
_ONE_TAG = '(W/)?"[!#-~]*"'
_TAGS: Json = {
    "schema": {"type": "string", "pattern": rf"^(\*|{_ONE_TAG}(, *{_ONE_TAG})*)$"},
    "required": False,
    "in": "header",
}
_IF_MATCH: Json = {
    "name": "If-Match",
    "description": "The `ETag` of what you read. If the resource was changed since, nothing is done, and the answer is"
    " 412.",
    "example": '"4c1f0e0d5ab7c7a1b6b1f0f2a0f4c3d2"',
}
_IF_NONE_MATCH: Json = {
    "name": "If-None-Match",
    "description": "The `ETag` of what you have. If it is still that, the answer is 304, without a body.",
    "example": '"4c1f0e0d5ab7c7a1b6b1f0f2a0f4c3d2"',
}
_IF_ABSENT: Json = {
    "name": "If-None-Match",
    "description": "`*`: create it, never replace it; the answer is 412 if it exists.",
    "example": "*",
}


def condition_parameters(method: str) -> list[Json]:
    """The OpenAPI parameters of an operation that is tagged."""
    match method:
        case "GET":
            return [_IF_NONE_MATCH | _TAGS]
        case "PUT":
            return [_IF_MATCH | _TAGS, _IF_ABSENT | _TAGS]
        case "PATCH" | "DELETE":
            return [_IF_MATCH | _TAGS]
    return []


def tag_header(method: str) -> Json:
    """The OpenAPI members of a success of an operation that is tagged."""
    if method == "DELETE":
        return {}
    return {"headers": {"ETag": {"schema": {"type": "string"}, "description": "The version, for `If-Match`."}}}


def tagged(answer: BaseModel | Encoded, tag: str) -> Encoded:
    """An answer with the entity tag of the resource that it shows."""
    return Encoded(encoded(answer).pieces, {_ETAG: f'"{tag}"'})


def condition_of(request: web.Request, *, is_tagged: bool) -> Condition:
    """The request's condition. `is_tagged`: its operation evaluates one, unless it creates. 400 for a write that does
    not, because it would lose updates; a read that does not ignores it."""
    if not is_tagged and request.method in _SAFE:
        return Condition()
    condition = Condition(_tags(request, "If-Match"), _tags(request, "If-None-Match"))
    evaluates = is_tagged and request.method != "POST"
    if not evaluates and condition != Condition():
        name = "If-None-Match" if condition.if_match is None else "If-Match"
        fault = "this operation cannot have a condition; leave the header out"
        raise bad_request(f"{name}: {fault}", Detail(name, fault))
    return condition


def not_modified(request: web.Request, condition: Condition, answer: Encoded) -> web.Response | None:
    """304 for a read whose caller knows the answer already; 412 for one that `If-Match` forbids."""
    tag = answer.headers.get(_ETAG, "").strip('"')
    if request.method not in _SAFE or not tag:
        return None
    condition.check_match(tag)
    if not condition.is_known(tag):
        return None
    return web.Response(status=304, headers={"Cache-Control": "no-store", **answer.headers})


def _tags(request: web.Request, name: str) -> Tags | None:
    lines = request.headers.getall(name, [])
    if not lines:
        return None
    text = ", ".join(lines).strip(" \t,")
    if text == "*":
        return Tags(is_any=True)
    strong: set[str] = set()
    weak: set[str] = set()
    at = 0
    while match := _TAG.match(text, at):
        (weak if match[1] else strong).add(match[2])
        at = match.end()
        if at == len(text):
            return Tags(strong=frozenset(strong), weak=frozenset(weak))
        gap = _GAP.match(text, at)
        at = gap.end() if gap else len(text)
    fault = 'give the ETag as it was answered, quotes included, such as "0f3a", several with commas between, or *'
    raise bad_request(f"{name}: {fault}", Detail(name, fault))
