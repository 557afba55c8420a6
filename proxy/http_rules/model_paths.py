"""The paths of direct calls to platform models and of asynchronous requests, and the hosts that name a model. Pure.

`/models/{model_id}/{where}/…`, or `/{where}/…` on the host `model-{model_id}.<suffix>`; `/async_request/{request_id}`
also without a model. Only the literal spelling of a path is served: an escape in a fixed part of it names nothing. What
follows `sync/` goes on as it was written.

See docs/reference/inference.md#direct-calls.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote_to_bytes

from policy.deployments import Where
from proxy.refusals import MalformedRequestError, NoSuchPathError, UpgradeError

PREFIX = "/models/"
ASYNC_REQUEST_PREFIX = "/async_request/"
MOST_DECODINGS = 4
"""Number of times that a path is decoded in search of `..`; more layers of escapes are refused."""
_HOST = re.compile(r"(?P<name>[^:/?#@\[\]\\\s]+?)\.?(?::[0-9]*)?")
_MODEL_LABEL = "model-"
_MODEL_ID = re.compile(r"mdl[-_]([0-9a-z]{26})")
_HOST_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NOT_SENDABLE = re.compile(r"[^\x21-\x7e]|#")
# `\` is a separator to some servers; others cut a segment at `;` or at a zero byte, or strip blanks.
_PARENT = re.compile(rb"(?:\A|[/\\])\s*\.\.\s*(?:[/\\;\0]|\Z)")
_WHERE = re.compile(
    r"/(?:(?P<named>production|development)|environments/(?P<environment>[^/]+)|deployment/(?P<deployment>[^/]+))(?=/)"
)
_ASYNC_REQUEST = re.compile(rf"{ASYNC_REQUEST_PREFIX}(?P<id>[^/]+)")


class Action(Enum):
    """The action that a direct call, or a call about asynchronous requests, asks for."""

    PREDICT = "predict"
    SYNC = "sync"
    WAKE = "wake"
    ASYNC_PREDICT = "async_predict"
    ASYNC_QUEUE_STATUS = "async_queue_status"
    ASYNC_REQUEST = "async_request"


METHODS: Mapping[Action, tuple[str, ...]] = {
    Action.PREDICT: ("POST",),
    Action.SYNC: ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"),
    Action.WAKE: ("POST",),
    Action.ASYNC_PREDICT: ("POST",),
    Action.ASYNC_QUEUE_STATUS: ("GET", "HEAD"),
    Action.ASYNC_REQUEST: ("GET", "HEAD", "DELETE"),
}
ASYNC_ACTIONS = frozenset((Action.ASYNC_PREDICT, Action.ASYNC_QUEUE_STATUS, Action.ASYNC_REQUEST))


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A parsed path. `target`: path and query at the replica; "" if no replica is asked.

    With `Action.ASYNC_REQUEST`, `where` names nothing, and `model_id` is None if the path names no model.
    """

    model_id: str | None
    where: Where
    action: Action
    target: str
    request_id: str = ""
    """The id of the asynchronous request that the path names, as it was written."""


def parse_host_suffix(text: str) -> str:
    """The suffix of models' host names, in lower case. Raises `ValueError`."""
    suffix = text.strip().lower()
    if not all(map(_HOST_LABEL.fullmatch, suffix.split("."))):
        raise ValueError("expected a host name such as models.example.com")
    return suffix


def model_of_host(host: str | None, suffix: str) -> str | None:
    """The id of the model that a `Host` field names; "" if none can have that name; None for any other host."""
    match = _HOST.fullmatch(host) if host is not None else None
    name = match["name"].lower() if match is not None else ""
    label, _, rest = name.partition(".")
    if rest != suffix or not label.startswith(_MODEL_LABEL):
        return None
    id = _MODEL_ID.fullmatch(label.removeprefix(_MODEL_LABEL))
    return "" if id is None else f"mdl_{id[1].upper()}"


def model_path(target: str, host_model: str | None) -> ModelPath:
    """Parse a request's target. `host_model`: the model that its host names, if it names one.

    Raises `NoSuchPathError`, `UpgradeError` for a WebSocket path, or `MalformedRequestError` for what cannot be sent.
    """
    path, mark, query = target.partition("?")
    model_id, rest = (host_model, path) if host_model is not None else _split_model(path)
    if _NOT_SENDABLE.search(target) or _BAD_ESCAPE.search(target):
        raise MalformedRequestError("the request target holds a character that must be percent-encoded")
    if (request := _ASYNC_REQUEST.fullmatch(rest)) is not None:
        return ModelPath(model_id, Where(), Action.ASYNC_REQUEST, "", request["id"])
    match = _WHERE.match(rest)
    if match is None:
        raise NoSuchPathError
    where = Where(match["named"] or match["environment"], match["deployment"])
    action, below = _action(rest[match.end() :])
    if not _is_text(below) or leaves(below):
        raise MalformedRequestError("the path below sync/ must not hold '..' as a segment, nor hide it in escapes")
    return ModelPath(model_id, where, action, f"{below}{mark}{query}" if below else "")


def leaves(path: str) -> bool:
    """Return whether a server could read a segment of `path` as `..`, decoding it once or more often."""
    raw = path.encode()
    for _ in range(MOST_DECODINGS):
        if _PARENT.search(raw):
            return True
        decoded = unquote_to_bytes(raw)
        if decoded == raw:
            return False
        raw = decoded
    return True


def _is_text(path: str) -> bool:
    """Return whether its escapes are UTF-8. An overlong form of `.` or `/` is not."""
    try:
        unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        return False
    return True


def _split_model(path: str) -> tuple[str | None, str]:
    if path.startswith(ASYNC_REQUEST_PREFIX):
        return None, path
    model_id, slash, rest = path.removeprefix(PREFIX).partition("/")
    if not path.startswith(PREFIX) or not model_id:
        raise NoSuchPathError
    return model_id, slash + rest


def _action(rest: str) -> tuple[Action, str]:
    """The action, and the path at the replica."""
    match rest:
        case "/predict":
            return Action.PREDICT, "/predict"
        case "/wake":
            return Action.WAKE, ""
        case "/async_predict":
            return Action.ASYNC_PREDICT, ""
        case "/async_queue_status":
            return Action.ASYNC_QUEUE_STATUS, ""
        case "/websocket":
            raise UpgradeError
    if rest.startswith("/sync/"):
        return Action.SYNC, rest.removeprefix("/sync")
    raise NoSuchPathError
