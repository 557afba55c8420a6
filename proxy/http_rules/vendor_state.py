"""Refuses requests that name state in the vendor's account: stored responses, files, containers (400). Pure.

All groups share a target's credential: what one stored, another could read by its id. A body is searched for the names
as text, and read closely where one occurs, which may be a name in the caller's own data.

See docs/reference/inference.md#state-in-the-vendors-account.
"""

import re
from collections.abc import Iterator
from typing import Any

from proxy.accounting.cost_bounds.vendor_tools import is_reference
from proxy.errors import UntranslatableError
from proxy.http_rules.strict_json import check_members_are_unique
from proxy.records.messages import Received

RESPONSES_PATH = "/v1/responses"
CHAT_PATH = "/v1/chat/completions"
REASON = (
    "names state in the vendor's account, which all groups of this slug share; send the content itself, "
    'or have the operator set "upstream_state": "PASS" on the target'
)
_BACKGROUND = "background"
_BACKGROUND_REASON = "must be false: the gateway keeps no responses to fetch later"

_REFUSED_AT_TOP = frozenset(("container", "conversation", "previous_response_id"))
"""Members of the body itself that name state."""
_EVERYWHERE = _REFUSED_AT_TOP | {"thread", "cached_content", "extra_body", "google"}
_NAMES = frozenset(
    (
        *("file_id", "file_ids", "vector_store_id", "vector_store_ids", "container_id", "skill_id"),
        *("cached_content", "cachedContent"),
    )
)
"""Members that name state wherever they stand, but in the caller's own data."""
_OPAQUE = frozenset(
    (
        *("input_schema", "parameters", "schema", "properties", "input_examples"),
        *("arguments", "metadata", "client_metadata"),
    )
)
"""Members that hold the caller's own data, whose names mean nothing to the vendor."""
_TOOL_USES = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))
"""Blocks whose `input` is such data."""

_IDS = (b"file_id", b"vector_store_id")
_CLUES: dict[str, tuple[frozenset[str], tuple[bytes, ...]]] = {
    CHAT_PATH: (_EVERYWHERE, (*_IDS, b'"audio"')),
    RESPONSES_PATH: (
        _EVERYWHERE | {_BACKGROUND, "prompt"},
        (*_IDS, b'"container', b"skill_id", b"item_reference", b"image_generation_call"),
    ),
}
"""Members of the body itself, and texts anywhere in it, that call for a close look, by path. Each text is a search of
the whole body: so few of them, and none shorter than six bytes, which Python searches twice as slowly."""
_OTHER_CLUES = (_EVERYWHERE, (*_IDS, b'"container'))
_BACKSLASH = ord("\\")
_ESCAPE = b"\\u00"
_ESCAPED_LETTER = re.compile(rb"\\u00(?:[46][1-9A-Fa-f]|[57][0-9Aa]|5[Ff])")
"""A letter or an underscore, which nobody needs to escape: it could hide a name from the search."""


def needs_a_close_look(request: Received) -> bool:
    """Return whether the body might name state in the vendor's account. Costs an ordinary call about a microsecond."""
    json = request.json
    outline = request.outline
    path = request.facts.path
    members, clues = _CLUES[path] if path in _CLUES else _OTHER_CLUES  # noqa: SIM401  (no C call on the hot path)
    if not members.isdisjoint(json):
        return True
    text = request.body if outline is None else outline.text
    if max(map(text.find, clues)) >= 0:  # `in` raises and drops an exception before it looks for bytes
        return True
    if _BACKSLASH in text and text.find(_ESCAPE) >= 0 and _ESCAPED_LETTER.search(text):
        return True
    return path == RESPONSES_PATH and _references(json)


def check_vendor_state(request: Received, passes_state: bool) -> None:
    """Refuse a body that `needs_a_close_look` if it does name such state, and `background`.

    Takes time in proportion to the body. Raises `UntranslatableError`, or `MalformedRequestError` for a member that
    is given twice.
    """
    json = request.json
    is_responses = request.facts.path == RESPONSES_PATH
    if passes_state and not (is_responses and _BACKGROUND in json):
        return
    check_members_are_unique(searched_text(request))
    if is_responses and json.get(_BACKGROUND):
        raise UntranslatableError(_BACKGROUND, _BACKGROUND_REASON)
    field = None if passes_state else next(_named(json, is_responses), None)
    if field is not None:
        raise UntranslatableError(field, REASON)


def names_state(part: str) -> bool:
    """Return whether the name of a form's part, such as `image[file_id]`, names state."""
    return not _NAMES.isdisjoint(re.split(r"[\[\].]+", part.lower()))


def searched_text(request: Received) -> bytes:
    """The body's text; of long strings, placeholders: no name is as long."""
    return request.body if request.outline is None else request.outline.text


def _named(json: dict[str, Any], is_responses: bool) -> Iterator[str]:
    """The fields that name state."""
    for name in sorted(_REFUSED_AT_TOP | {"prompt"}) if is_responses else sorted(_REFUSED_AT_TOP):
        if json.get(name):
            yield name
    thread = json.get("thread")
    if thread and not (isinstance(thread, dict) and thread.get("type") == "create"):
        yield "thread"
    items = json.get("input")
    if is_responses and isinstance(items, list):
        yield from (f"input.{place}" for place, item in enumerate(items) if is_reference(item))
    yield from _named_within(json)


def _references(json: dict[str, Any]) -> bool:
    """Return whether an item of the input says no type: then it may be a reference to a stored item."""
    items = json.get("input")
    return isinstance(items, list) and any(isinstance(item, dict) and item.get("type") is None for item in items)


def _named_within(json: dict[str, Any]) -> Iterator[str]:
    """The fields that name state by a name that does so wherever it stands."""
    open_values: list[tuple[str, Any]] = [("", json)]
    while open_values:
        field, value = open_values.pop()
        if isinstance(value, list):
            inner = [(f"{field}{place}.", item) for place, item in enumerate(value) if isinstance(item, dict | list)]
            open_values += reversed(inner)
        elif isinstance(value, dict):
            opaque = _OPAQUE | {"input"} if value.get("type") in _TOOL_USES else _OPAQUE
            names = [name for name in value if name not in opaque]
            yield from (f"{field}{name}" for name in names if _is_state(name, value[name]))
            open_values += [(f"{field}{name}.", value[name]) for name in reversed(names)]


def _is_state(name: str, value: object) -> bool:
    """Return whether a member names state: an id of something stored, an existing container, a stored sound."""
    if name in _NAMES:
        return bool(value)
    if name == "container":
        return bool(value) and (not isinstance(value, dict) or bool(value.get("id")))
    return name == "audio" and isinstance(value, dict) and bool(value.get("id"))
