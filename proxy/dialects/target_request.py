"""Writes a call's request for its target, as an attempt says: path, header fields, and the body.

Pure. A body that passes is edited in its bytes; one that is translated, or had sealed reasoning, is encoded anew.
"""

import orjson

from policy.endpoints import CHAT_COMPLETIONS, Target
from proxy.dialects.chat_completions import passing as chat_completions
from proxy.dialects.dialect_attempt import DialectAttempt
from proxy.dialects.middle.dialect import Dialect
from proxy.dialects.output_caps import capped_members
from proxy.dialects.upstream_request import UpstreamRequest
from proxy.dialects.vendor_rules import vendor_c
from proxy.json_text.json_edit import Json, edit_members
from proxy.json_text.segmented_body import RequestBody
from proxy.records.messages import Received


def target_request(
    request: Received, target: Target, credential: str | None, attempt: DialectAttempt, dialect: Dialect
) -> UpstreamRequest:
    """The request in `dialect`, which is the attempt's."""
    config = target.vendor_c_config
    path = dialect.path if attempt.is_translated else request.facts.path
    token = credential if config is None else vendor_c.bearer_token(credential)
    headers = dialect.request_headers(token, target.provider, None if attempt.is_translated else request.incoming)
    if request.upload is not None:
        request.upload.rename(target.target_model or request.slug)
        headers["content-type"] = request.upload.content_type
    if config is None:
        return UpstreamRequest(path, headers)
    return UpstreamRequest(vendor_c.api_path(config, path), headers, config.location)


def target_body(request: Received, target: Target, attempt: DialectAttempt) -> RequestBody:
    """The body of the same; empty if an upload is it."""
    if request.upload is not None:
        return b""
    if attempt.request is not None:  # it is translated
        left_out = () if attempt.asks_usage else (chat_completions.STREAM_OPTIONS,)
        return _written({name: value for name, value in (attempt.json or {}).items() if name not in left_out}, request)
    asks_usage = request.streaming and adds_usage(request, attempt)
    changes = chat_completions.changed_members(request.json, target.target_model, asks_usage=asks_usage)
    if request.granted_cap is not None:
        changes |= capped_members(request.json, request.facts.path, target.provider, request.granted_cap)
    if attempt.json is None:
        return edit_members(request.body, request.json, changes, request.outline)
    return _written(attempt.json | {name: orjson.Fragment(text) for name, text in changes.items()}, request)


def adds_usage(request: Received, attempt: DialectAttempt) -> bool:
    """Return whether a call that passes is changed so that its stream reports the usage."""
    if not attempt.asks_usage or attempt.dialect != CHAT_COMPLETIONS:
        return False
    return chat_completions.adds_include_usage(request.facts.path, request.json)


def adds_stream_options(request: Received, attempt: DialectAttempt) -> bool:
    """Return whether this attempt, and not the caller, sends `stream_options`: then a refusal of it is our fault."""
    if attempt.is_translated:
        return attempt.asks_usage and chat_completions.STREAM_OPTIONS in (attempt.json or {})
    return adds_usage(request, attempt) and request.json.get(chat_completions.STREAM_OPTIONS) is None


def _written(json: Json, request: Received) -> RequestBody:
    text = orjson.dumps(json)
    outline = request.outline
    return text if outline is None else outline.restored_body(text)
