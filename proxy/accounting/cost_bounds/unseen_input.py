"""Input that is not in the body, or not as text: stored state, media of any kind, templates. Pure.

Kinds of parts that are not known here count as such: vendors add kinds, and a hard spend limit must hold for them.
"""

from collections.abc import Mapping
from typing import Any

from proxy.accounting.call_bound import EDITS_PATH, EMBEDDINGS_PATH
from proxy.accounting.cost_bounds.vendor_tools import RESPONSES_PATH, is_reference

Json = Mapping[str, Any]

STATE_MEMBERS = frozenset(
    (
        *("previous_response_id", "conversation", "container", "thread", "cached_content", "cachedContent"),
        *("extra_body", "google", "files", "file_ids", "attachments", "videos", "audios"),
    )
)
"""Members that name input which is not in the body, and those that may hold such."""
_TEMPLATE = "chat_template"
_TEMPLATE_MEMBERS = frozenset((_TEMPLATE, "chat_template_kwargs"))
"""Members that hold the program by which a server writes the input: of any length."""
UNSEEN_MEMBERS = STATE_MEMBERS | _TEMPLATE_MEMBERS
_CONTENTS = ("messages", "input", "system", "prompt", "instructions", "documents")
_INNER_CONTENTS = ("content", "output")
_TEXT_KINDS = frozenset(
    (
        *("text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal", "search_result"),
        *("thinking", "redacted_thinking", "reasoning", "compaction", "message", "tool_use", "tool_result"),
        *("function", "function_call", "function_call_output", "custom", "custom_tool_call", "custom_tool_call_output"),
        *("local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output"),
        *("apply_patch_call", "apply_patch_call_output", "computer_call", "computer_call_output", "output"),
        *("mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
        *("server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_search_result"),
        *("namespace", "additional_tools", "tool_reference", "document"),
    )
)
"""Kinds of parts and items that are text in the body, or whose contents are looked at. A document that is more has a
figure in `call_bound.py`, as all media that are known there."""
_TEXT_MEMBERS = frozenset(
    (
        *("type", "role", "content", "text", "name", "cache_control", "tool_calls", "tool_call_id", "refusal", "title"),
        *("reasoning", "reasoning_content", "reasoning_details", "annotations", "function_call", "prefix", "id"),
        *("status", "phase", "output", "input", "arguments", "call_id", "summary", "thinking", "signature", "data"),
        *("citations", "context", "tool_use_id", "is_error", "extra_content", "logprobs", "encrypted_content"),
    )
)
"""Members of a part without a type. Another one may be a URL."""
_MEDIA_OF_MESSAGES = frozenset(("images", "videos", "audios", "files", "file_ids", "attachments"))
"""Members of a message that servers read beside its content, besides those that have figures."""
_RERANKS = ("/v1/rerank", "/v2/rerank")
"""Paths whose documents may have any members."""
_STORED_ITEMS = frozenset(("web_search_call", "file_search_call", "code_interpreter_call"))
"""Items of Responses whose results the vendor keeps, and looks up by their ids."""
_HOLDING = frozenset((dict, list))
MOST_LOOKED_AT = 8192
"""A body with more parts counts as if it held something unseen."""
_MEDIA_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations", EDITS_PATH)
"""Paths whose input is no text."""
_GENERATIONS_PATH = "/v1/images/generations"
_SPEECH_PATH = "/v1/audio/speech"
_ABOUT_OUTPUT = ("model", "user", "metadata", "response_format", "stream", "stream_format", "store", "n", "seed")
_OF_TEXT_PATHS = {
    _GENERATIONS_PATH: frozenset(
        (
            *(*_ABOUT_OUTPUT, "prompt", "size", "quality", "style", "background", "moderation", "output_format"),
            *("output_compression", "partial_images", "input_fidelity", "image", "images", "mask", "negative_prompt"),
            *("aspect_ratio", "width", "height", "steps", "num_inference_steps", "guidance_scale"),
        )
    ),
    _SPEECH_PATH: frozenset((*_ABOUT_OUTPUT, "input", "voice", "instructions", "speed", "language", "sample_rate")),
    EMBEDDINGS_PATH: frozenset(
        (
            *("model", "user", "metadata", "input", "dimensions", "encoding_format", "truncate", "input_type", "task"),
            *("messages", "images", "truncation", "output_dimension", "output_dtype", "normalized", "late_chunking"),
            *("truncate_prompt_tokens", "add_special_tokens", "priority", "embedding_type", "stream"),
        )
    ),
}
"""The members of paths whose input is text, or a figure of `call_bound.py`. Any other may name what is read."""


def unseen_inputs(body: Json, path: str) -> int:
    """Return how many inputs of the call may be more than its body holds, each at most what the model takes.

    Takes time in proportion to the parts of its contents.
    """
    if path in _MEDIA_PATHS or not _OF_TEXT_PATHS.get(path, body.keys()) >= body.keys():
        return max(1, _separate_parts(body))
    if not UNSEEN_MEMBERS.isdisjoint(body) and _has_state_or_template(body):
        return 1
    if path == RESPONSES_PATH and (type(body.get("prompt")) is dict or _has_stored_items(body.get("input"))):
        return 1
    return max(1, _separate_parts(body)) if _has_unknown_parts(body, path) else 0


def _separate_parts(body: Json) -> int:
    """The most parts that a path without conversations reads apart from each other."""
    contents = [body[name] for name in _CONTENTS if name in body]
    contents += [content["content"] for content in contents if type(content) is dict and "content" in content]
    return sum(len(content) for content in contents if type(content) is list)


def _has_state_or_template(body: Json) -> bool:
    if any(body.get(name) for name in STATE_MEMBERS) or body.get(_TEMPLATE):
        return True
    values = body.get("chat_template_kwargs")
    return bool(values) and (type(values) is not dict or _TEMPLATE in values)


def _has_stored_items(items: object) -> bool:
    return type(items) is list and any(map(_is_stored, items))


def _is_stored(item: object) -> bool:
    """Return whether an item stands for more than it holds: the vendor looks up by its id what is left out."""
    if is_reference(item):
        return True
    if type(item) is not dict or not item.get("id"):
        return False
    kind = item.get("type")
    return kind in _STORED_ITEMS or (kind == "reasoning" and not item.get("encrypted_content"))


def _has_unknown_parts(body: Json, path: str) -> bool:
    """Return whether a content holds a part that may be more than its text."""
    number = MOST_LOOKED_AT
    contents = [body[name] for name in _CONTENTS if name in body]
    while contents:
        content = contents.pop()
        if type(content) is not list:
            if type(content) is not dict:
                continue  # text
            content = [content]
        if _HOLDING.isdisjoint(map(type, content)):
            continue  # texts, or tokens: there may be a million
        for part in content:
            if type(part) is list:
                contents.append(part)
            if type(part) is not dict or (len(part) == 2 and "role" in part and type(part.get("content")) is str):
                continue
            number -= 1
            if number < 0 or not _is_text(part, path):
                return True
            contents += [part[name] for name in _INNER_CONTENTS if name in part]
    return False


def _is_text(part: Json, path: str) -> bool:
    """Return whether a part, its contents aside, is text that the body holds."""
    kind = part.get("type")
    if kind is not None:
        return type(kind) is str and kind in _TEXT_KINDS
    if "role" in part:
        return _MEDIA_OF_MESSAGES.isdisjoint(part)
    return path in _RERANKS or _TEXT_MEMBERS.issuperset(part)
