"""Errors of upstreams that concern the request: the server lacks the path, or does not know a member.

Pure. Frameworks answer a missing path in their own form, and model servers in the form of their other errors; a model
that is missing has the same status. Some servers say either under a 200.

See docs/reference/inference.md#dialects.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from proxy.json_text.json_bounds import is_surely_within_bounds

Json = dict[str, Any]

NOT_FOUND = 404
LACKING = (NOT_FOUND, 405, 501)
"""The statuses of a missing path. A 404 may mean the model: its body tells."""
_TOLD = {str(status): status for status in LACKING}
REFUSING = (400, 422)
"""The statuses of a request with a member that the server does not know."""
BOM = b"\xef\xbb\xbf"

_CODES = frozenset(
    (
        *("unknown_url", "invalid_url", "not_implemented", "api_not_implemented", "method_not_allowed"),
        *("route_not_found", "path_not_found", "url_not_found", "unknown_endpoint", "unsupported_endpoint"),
    )
)
"""Codes and types of errors that mean a missing path."""
_WHOLE = frozenset(("not found", "file not found", "not implemented", "method not allowed"))
"""Messages that name nothing: nothing but the path can be meant."""
_PLACE = re.compile(r"\b(?:url|uri|path|endpoint|route|page|resource)\b|\bv1/(?:chat/completions|messages|responses)\b")
_MISSING = re.compile(
    r"\b(?:no|not|cannot|can't|invalid|unknown|unexpected|unrecognized|unrecognised|unsupported|unimplemented|missing)\b"
)
_MODEL = re.compile(r"\bmodels?\b|\bdeployment\b")
_OUTPUT = ("choices", "content", "output", "data")
KEY_BYTES = 512
"""Bytes of a success in which the key of an error is looked for: an error has little else before it."""
_STATUS_NAMES = ("status", "statusCode", "code")
_ERROR = b'"error"'
_DETAIL = b'"detail"'
_MESSAGES = (b'"msg"', b'"message"')
_OUTPUT_KEYS = (b'"choices"', b'"content"', b'"output"')
"""An answer with a `"message"` has one of these before or right behind it."""
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*+<")
_SAYS_NOTHING = re.compile(rb'"(?:error|detail)"\s*+:\s*+null\b')


def is_success(status: int) -> bool:
    return 200 <= status < 300


def may_be_refusal(beginning: bytes) -> bool:
    """Return whether a body with this beginning may be an error or a page, and not events."""
    return beginning.removeprefix(BOM).lstrip()[:1] in (b"", b"{", b"<")


def is_page(body: bytes) -> bool:
    """Return whether a body is HTML or XML, which no model server answers."""
    return _PAGE.match(body) is not None


def lacks_path(status: int, body: bytes) -> bool:
    """Return whether this answer means that the server lacks the path, and not that it lacks the model.

    A status says so; a success only if its body is a page, or has no output and says so by a message or a status.
    """
    if is_page(body):
        return is_success(status) or status in LACKING
    if is_success(status):
        error = _parsed(body) if _may_be_error(body) else None
        return error is not None and not _has_output(error) and _says_lacking(error, _told_status(error))
    if status != NOT_FOUND:
        return status in LACKING
    error = _parsed(body)
    if error is None:
        return _MODEL.search(body.decode("utf-8", "replace").lower()) is None
    return _says_lacking(error, status)


def refuses_member(status: int, body: bytes, names: Sequence[bytes]) -> bool:
    """Return whether this answer refuses one of these members of the request: in whatever form, it must name it."""
    if status not in REFUSING and not (is_success(status) and _is_error(_parsed(body))):
        return False
    return any(name in body for name in names)


def _may_be_error(body: bytes) -> bool:
    """Return whether a success may be an error: a look at its bytes, as nearly all are answers."""
    if body.find(_ERROR, 0, KEY_BYTES) < 0 and body.find(_DETAIL, 0, KEY_BYTES) < 0:
        beginning = body[:KEY_BYTES]
        return any(key in beginning for key in _MESSAGES) and not any(key in beginning for key in _OUTPUT_KEYS)
    return len(_SAYS_NOTHING.findall(body)) < body.count(_ERROR) + body.count(_DETAIL)


def _says_lacking(error: Json, status: int) -> bool:
    """Return whether an error of this status, which it has or tells, means a missing path."""
    if status in LACKING and status != NOT_FOUND:
        return True
    if _names_path(error):
        return True
    return status == NOT_FOUND and not isinstance(error.get("error"), dict) and not _names_model(error)


def _told_status(error: Json) -> int:
    """Return the status of a missing path that an error tells in its members; 0 if it tells none."""
    for holder in (error, error.get("error")):
        for name in _STATUS_NAMES:
            value = holder.get(name) if isinstance(holder, dict) else None
            if isinstance(value, (int, str)) and (text := str(value)) in _TOLD:
                return _TOLD[text]
    return 0


def _has_output(error: Json) -> bool:
    return any(error.get(name) for name in _OUTPUT)


def _names_path(error: Json) -> bool:
    """Return whether an error says that it is the path that is missing."""
    if _has_output(error):
        return False
    if not _CODES.isdisjoint(_codes(error)):
        return True
    message = _message(error)
    if message.strip(" .!") in _WHOLE:
        return True
    return not _names_model(error) and bool(_PLACE.search(message)) and bool(_MISSING.search(message))


def _names_model(error: Json) -> bool:
    return any(_MODEL.search(text.replace("_", " ")) for text in (*_codes(error), _message(error)))


def _is_error(body: Json | None) -> bool:
    return body is not None and bool(body.get("error") or body.get("detail") or body.get("object") == "error")


def _codes(error: Json) -> Iterator[str]:
    """The codes, types and named members of an error, in lower case."""
    for holder in (error, error.get("error")):
        for name in ("code", "type", "param"):
            value = holder.get(name) if isinstance(holder, dict) else None
            if isinstance(value, str):
                yield value.lower()


def _message(error: Json) -> str:
    """The message of an error in any common form, in lower case; empty if it has none."""
    inner = error.get("error")
    if isinstance(inner, str):
        return inner.lower()
    for holder in (inner, error):
        for name in ("message", "detail", "msg", "title"):
            value = holder.get(name) if isinstance(holder, dict) else None
            if isinstance(value, str):
                return value.lower()
    return ""


def _parsed(body: bytes) -> Json | None:
    """The body, if it is a JSON object of a reasonable size."""
    body = body.removeprefix(BOM)
    if not is_surely_within_bounds(body):
        return None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
