"""Rules for the calls that the console makes at the proxy on behalf of whoever is logged in.

The path is checked character by character, so the text that is appended to the proxy's URL can name no other host, and
no path but one of the inference API.

See docs/reference/console.md#calls.
"""

import re

from control.errors import InvalidFieldError
from control.records.console import InferenceCall

CALLER_FIELDS = ("accept", "anthropic-beta", "anthropic-version", "openai-beta", "x-request-id")
"""The header fields that a page may set. All others are ours."""
METHODS = ("GET", "POST", "DELETE")
_MAX_PATH_CHARS = 1024
_PATH = re.compile(r"/(?:v1|v2|models|async_request)(?:/[A-Za-z0-9][A-Za-z0-9._-]*)+")
_FIELD_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,1022}[\x21-\x7e])?")
_LOOKS = re.compile(
    r"/v1/models|(?:/models/[^/]+)?/async_request/[^/]+"
    r"|/models/[^/]+/(?:production|development|environments/[^/]+|deployment/[^/]+)/async_queue_status"
)
_API_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def is_look(method: str, path: str) -> bool:
    """Return whether a call of a page only shows something: a list of slugs, a queue, an asynchronous request."""
    return method == "GET" and _LOOKS.fullmatch(path) is not None


def check_call(call: InferenceCall) -> None:
    """Raise `InvalidFieldError` unless every part is one that a page may choose."""
    if len(call.path) > _MAX_PATH_CHARS or _PATH.fullmatch(call.path) is None:
        raise InvalidFieldError("path", "must be a path of the inference API, without a query and without escapes")
    if call.body is not None and call.method != "POST":
        raise InvalidFieldError("body", f"{call.method} has no body")
    for name, value in call.headers.items():
        if name not in CALLER_FIELDS:
            raise InvalidFieldError("headers", f"may hold {', '.join(CALLER_FIELDS)}, each once")
        if _FIELD_VALUE.fullmatch(value) is None:
            raise InvalidFieldError(f"headers.{name}", "must be 1 to 1024 visible ASCII characters, and spaces within")
    if _API_KEY.fullmatch(call.api_key) is None:
        raise InvalidFieldError("api_key", "is not an API key")
