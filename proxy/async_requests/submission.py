"""Reads the body of `async_predict`. Each fault is a 400 that names the member by its path, and what is allowed. Pure.

See docs/reference/inference.md#asynchronous-requests.
"""

from collections.abc import Generator, Sequence
from typing import Any

import orjson

from proxy.async_requests.requests import RetryRules, Submission
from proxy.json_text.json_bounds import TooManyValuesError
from proxy.json_text.json_edit import find_member
from proxy.json_text.member_spans import member_spans
from proxy.json_text.segmented_body import SegmentedBody
from proxy.json_text.sliced_json import parse_at_once
from proxy.json_text.streamed_json import StreamedJson
from proxy.refusals import MalformedRequestError
from proxy.time_slices import Slices

MODEL_INPUT = "model_input"
WEBHOOK_ENDPOINT = "webhook_endpoint"
PRIORITY = "priority"
MAX_TIME_IN_QUEUE = "max_time_in_queue_seconds"
RETRY_CONFIG = "inference_retry_config"
MEMBERS = (MODEL_INPUT, WEBHOOK_ENDPOINT, PRIORITY, MAX_TIME_IN_QUEUE, RETRY_CONFIG)

MAX_ATTEMPTS = f"{RETRY_CONFIG}.max_attempts"
INITIAL_DELAY = f"{RETRY_CONFIG}.initial_delay_ms"
MAX_DELAY = f"{RETRY_CONFIG}.max_delay_ms"
RETRY_MEMBERS = (MAX_ATTEMPTS, INITIAL_DELAY, MAX_DELAY)

BOUNDS = {
    PRIORITY: (0, 2),
    MAX_TIME_IN_QUEUE: (10, 259_200),
    MAX_ATTEMPTS: (1, 10),
    INITIAL_DELAY: (0, 10_000),
    MAX_DELAY: (0, 60_000),
}
"""The smallest and the largest value of each number, by its path."""

MAX_SETTINGS_BYTES = 64 << 10
"""Most bytes of all members but `model_input`, in a body that is read in slices."""
SHOWN_CHARS = 40
"""Most characters of a member's name or value that a message quotes."""
SHOWN_NAMES = 5
_PIECE_BYTES = 64 << 10
_SPACE = b" \t\r\n"
_DEFAULTS = Submission(b"")

Json = dict[str, Any]
Members = tuple[Json, bytes]
"""All members but `model_input`; and the text of `model_input` as it was written."""


async def parse_submission(raw: bytes, workspace: str, slices: Slices) -> Submission:
    """Read the whole body. `null` for an optional member counts as absent. Raises `MalformedRequestError`.

    The webhook's address is not judged here. Nor is what `model_input` holds: the model may take any JSON.
    """
    try:
        members = _members_at_once(raw)  # succeeds for nearly all requests
        if members is None:
            members = await slices.run(workspace, _members_in_slices(raw), len(raw))
    except orjson.JSONDecodeError:
        raise MalformedRequestError("the body is not valid JSON") from None
    except TooManyValuesError as error:
        raise MalformedRequestError(f"the body {error}") from None
    settings, model_input = members
    _check_names(settings, MEMBERS, "the body")
    webhook_endpoint = settings.get(WEBHOOK_ENDPOINT)
    if not isinstance(webhook_endpoint, str | None):
        raise _misfit(WEBHOOK_ENDPOINT, "a string, the URL that is told the result", webhook_endpoint)
    return Submission(
        model_input,
        webhook_endpoint,
        _integer(settings, PRIORITY, _DEFAULTS.priority),
        _integer(settings, MAX_TIME_IN_QUEUE, _DEFAULTS.max_time_in_queue_s),
        _retries(settings.get(RETRY_CONFIG)),
    )


def _members_at_once(raw: bytes) -> Members | None:
    """The members of a short body; None if it could block the event loop, or has `model_input` twice."""
    parsed = parse_at_once(raw)
    if parsed is None:
        return None
    json, _ = parsed
    if not isinstance(json, dict):
        raise _no_object()
    if MODEL_INPUT not in json:
        raise _no_model_input()
    member = find_member(raw, json, MODEL_INPUT)
    return ({**json, MODEL_INPUT: None}, raw[member.start : member.end]) if member is not None else None


def _members_in_slices(raw: bytes) -> Generator[None, None, Members]:
    """The members of any body. Of several members with one name, the last one counts."""
    checked = StreamedJson()
    yield from checked.feed(raw)
    if not checked.is_json():
        raise orjson.JSONDecodeError("not JSON", "", 0)
    start, end = _trimmed(raw, 0, len(raw))
    if raw[start : start + 1] != b"{":
        raise _no_object()
    members = yield from member_spans(raw)
    spans = {name: (start, end) for name, start, end in members}
    if MODEL_INPUT not in spans:
        raise _no_model_input()
    start, end = _trimmed(raw, *spans.pop(MODEL_INPUT))
    if sum(end - start for start, end in spans.values()) > MAX_SETTINGS_BYTES:
        raise MalformedRequestError(f"the members other than model_input hold more than {MAX_SETTINGS_BYTES} bytes")
    settings = {name: orjson.loads(raw[start:end]) for name, (start, end) in spans.items()}
    return settings, (yield from SegmentedBody(memoryview(raw)[start:end]).join_in_slices())


def _trimmed(raw: bytes, start: int, end: int) -> tuple[int, int]:
    """The span without the white space around its text, which is not empty."""
    piece = rest = b""
    while not rest:
        start += len(piece)
        piece = raw[start : start + _PIECE_BYTES]
        rest = piece.lstrip(_SPACE)
    start += len(piece) - len(rest)
    rest = b""
    while not rest:
        at = max(start, end - _PIECE_BYTES)
        rest = raw[at:end].rstrip(_SPACE)
        end = at + len(rest)
    return start, end


def _no_object() -> MalformedRequestError:
    return MalformedRequestError("the body must be a JSON object")


def _no_model_input() -> MalformedRequestError:
    return MalformedRequestError("model_input is missing: it is the JSON value that the model is sent")


def _retries(value: object) -> RetryRules:
    if value is None:
        return _DEFAULTS.retries
    if not isinstance(value, dict):
        raise _misfit(RETRY_CONFIG, "an object", value)
    settings = {f"{RETRY_CONFIG}.{name}": member for name, member in value.items()}
    _check_names(settings, RETRY_MEMBERS, RETRY_CONFIG)
    defaults = _DEFAULTS.retries
    return RetryRules(
        _integer(settings, MAX_ATTEMPTS, defaults.max_attempts),
        _integer(settings, INITIAL_DELAY, defaults.initial_delay_ms),
        _integer(settings, MAX_DELAY, defaults.max_delay_ms),
    )


def _integer(settings: Json, path: str, default: int) -> int:
    value = settings.get(path)
    if value is None:
        return default
    smallest, largest = BOUNDS[path]
    if type(value) is not int or not smallest <= value <= largest:  # a boolean is no integer here
        raise _misfit(path, f"an integer from {smallest} to {largest}", value)
    return value


def _check_names(settings: Json, allowed: Sequence[str], where: str) -> None:
    unknown = [orjson.dumps(_shortened(path)).decode() for path in settings if path not in allowed]
    if not unknown:
        return
    more = f" and {len(unknown) - SHOWN_NAMES} more" if len(unknown) > SHOWN_NAMES else ""
    members = f"unknown member{'s' if len(unknown) > 1 else ''} {', '.join(unknown[:SHOWN_NAMES])}{more}"
    raise MalformedRequestError(f"{members}: {where} may have {', '.join(allowed)}")


def _misfit(path: str, kind: str, value: object) -> MalformedRequestError:
    match value:
        case dict():
            text = "an object"
        case list():
            text = "a list"
        case _:
            text = _shortened(orjson.dumps(value).decode())
    return MalformedRequestError(f"{path} must be {kind}, not {text}")


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
