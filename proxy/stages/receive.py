"""Step 1: the head before the caller is known, the bounded body after (400 404 405 408 413 415 529).

No body is read for an unauthenticated caller. The body is parsed just far enough to know slug and streaming.
"""

from collections.abc import Awaitable, Coroutine, Mapping
from io import BytesIO
from typing import Any

import orjson

from policy import exact_json
from policy.request_ids import valid_request_id
from proxy.accounting import call_bound
from proxy.accounting.ulids import Ulids
from proxy.answers import Answered
from proxy.capacity.call_load import Load
from proxy.dialects import passed_paths
from proxy.dialects.counting import token_count
from proxy.exchange import RequestContext
from proxy.forms.boundary import is_form
from proxy.forms.form_upload import FormUpload
from proxy.http_rules import guarded_members
from proxy.http_rules.headers import MAX_METADATA_BYTES
from proxy.http_rules.model_paths import ASYNC_REQUEST_PREFIX, PREFIX, model_of_host
from proxy.json_text import json_edit
from proxy.json_text.json_bounds import SMALL_BYTES
from proxy.json_text.large_json import Outline
from proxy.json_text.request_json import RequestJson, request_json_at_once, request_json_in_slices
from proxy.parts import Parts
from proxy.records.head_facts import BodyFacts, HeadFacts, Purpose
from proxy.records.messages import ALIKE, MODELS_PATH, Incoming, Outgoing
from proxy.refusals import (
    BodyTooLargeError,
    EncodedBodyError,
    MalformedRequestError,
    NoSuchPathError,
    WrongMethodError,
)
from proxy.time_slices import Slices
from runtime.http.console_looks import HEADER as LOOK_HEADER
from runtime.http.console_looks import is_look_mark

_COUNTING = call_bound.COUNTING
_INFER = Purpose.INFER
_COUNT = Purpose.COUNT
_LIST = Purpose.LIST  # a global is ten times as fast as a member
_INFERENCE_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages")
_PURPOSES = {
    **dict.fromkeys((*_INFERENCE_PATHS, *passed_paths.PATHS), _INFER),
    token_count.PATH: _COUNT,
    MODELS_PATH: _LIST,
}
_FORM_PATHS = frozenset(path for path, passed in passed_paths.PATHS.items() if passed.takes_forms)
MESSAGES_PATH = "/v1/messages"
"""Below this path, SDKs read `request-id` from each response."""
_FACTS = "facts"
MODEL_PREFIX = f"{MODELS_PATH}/"
_INVOKE_PREFIXES = (PREFIX, ASYNC_REQUEST_PREFIX)

PIECE_BYTES = 65_536
"""A body that arrives in many reads wakes its call once for so many bytes, or for as many again as the call holds: what
arrives meanwhile is not held yet."""
JOINED_BYTES = 1 << 20
"""A body of at most this declared size is joined once, instead of growing."""
MAX_BODY_METADATA_BYTES = 65_536
"""Bound of a body's `metadata`, which goes into the journal and the event. No stock client reaches it."""


class Receive:
    """Reads requests."""

    def __init__(self, parts: Parts, ulids: Ulids, slices: Slices) -> None:
        self._cors = parts.cors
        self._model_host_suffix = parts.model_host_suffix
        self._look_mark = parts.look_mark
        self._slices = slices
        self._ulids = ulids
        self._max_body_bytes = parts.max_body_bytes

    def head(self, incoming: Incoming, outgoing: Outgoing) -> RequestContext:
        """Read the head of a request, which may be a malformed one. Its caller is not known yet."""
        facts: HeadFacts | None = incoming.facts.get(_FACTS)
        if facts is None:
            facts = incoming.facts[_FACTS] = self._facts(incoming)
        return RequestContext(incoming, outgoing, facts, facts.request_id or self._ulids.make())

    def _facts(self, incoming: Incoming) -> HeadFacts:
        alike: HeadFacts | None = incoming.facts.get(ALIKE, {}).get(_FACTS)
        if alike is not None:
            return alike.with_other_credential(repeats=incoming.repeats)
        header = incoming.header("x-request-id")
        suffix = self._model_host_suffix
        host_model = model_of_host(incoming.header("host"), suffix) if suffix else None
        path = incoming.request_target
        purpose = _PURPOSES.get(path)
        if purpose is None or host_model is not None:
            path = path.partition("?")[0]
            purpose = _purpose(path) if host_model is None else Purpose.INVOKE
        cors_lines = self._cors.lines(incoming) if self._cors.origins else ""
        request_id = valid_request_id(header) if header is not None else None
        look = incoming.header(LOOK_HEADER)
        is_look = look is not None and is_look_mark(look, self._look_mark)
        answers_request_id = path.startswith(MESSAGES_PATH)
        return HeadFacts(
            request_id, path, purpose, cors_lines, host_model, incoming.repeats, is_look, answers_request_id
        )

    def preflight(self, context: RequestContext) -> Answered | None:
        """The answer to a browser's preflight request; None for any other request."""
        return self._cors.preflight(context.incoming, context.facts.purpose is Purpose.INVOKE)

    def body(self, context: RequestContext, load: Load) -> Awaitable[None] | None:
        """Read the request's body: of a form as much as tells its model, otherwise all of it.

        Returns what to await if there is something to wait for.
        """
        facts = context.facts.body
        if facts is None:
            facts = context.facts.body = _body_facts(context)
        if facts.is_form:
            return self._form(context, facts.metadata)
        incoming = context.incoming
        size = incoming.declared_bytes
        if size is None or size > self._max_body_bytes or (body := incoming.whole()) is None:
            return self._body_to_come(context, facts.metadata)
        load.hold(size)
        context.request_bytes = size
        parsed = request_json_at_once(body)
        if parsed is None:
            return self._in_slices(context, facts.metadata, body)
        _understand(context, facts.metadata, body, parsed)
        return None

    async def _body_to_come(self, context: RequestContext, metadata: Mapping[str, Any] | None) -> None:
        body = await self._whole(context, self._max_body_bytes)
        parsed = request_json_at_once(body)
        if parsed is None:
            await self._in_slices(context, metadata, body)
        else:
            _understand(context, metadata, body, parsed)

    async def _in_slices(self, context: RequestContext, metadata: Mapping[str, Any] | None, body: bytes) -> None:
        parsed = await request_json_in_slices(body, context.workspace_id, self._slices)
        _understand(context, metadata, body, parsed)

    def whole(self, context: RequestContext) -> Coroutine[Any, Any, bytes]:
        """Read all of a direct call's body, which may be anything.

        No replica is asked for before: a caller who leaves while its body is unread would not be noticed.
        """
        return self._whole(context, self._max_body_bytes)

    def submission(self, context: RequestContext, max_bytes: int) -> Coroutine[Any, Any, bytes]:
        """Read all of an asynchronous request's body. `max_bytes`: its workspace's bound; the setting's holds too."""
        max_bytes = min(max_bytes, self._max_body_bytes)
        _check_encoding(context.incoming)
        return self._whole(context, max_bytes)

    async def _form(self, context: RequestContext, metadata: Mapping[str, Any] | None) -> None:
        assert context.load is not None  # it has entered
        declared = context.incoming.declared_bytes
        if declared is not None and declared > self._max_body_bytes:
            raise BodyTooLargeError(declared, self._max_body_bytes)
        upload = context.upload = FormUpload(context.incoming, context.load, self._max_body_bytes)
        slug = await upload.read_model()
        context.body = b""
        context.json = {"model": slug}
        context.outline = None
        context.slug = slug
        context.streaming = upload.streaming
        context.metadata = metadata
        context.output_cap = None
        context.answers = upload.most_answers(call_bound.most_form_answers(context.facts.path))

    async def _whole(self, context: RequestContext, max_bytes: int) -> bytes:
        incoming = context.incoming
        load = context.load
        assert load is not None  # it has entered
        declared = incoming.declared_bytes or 0
        if declared > max_bytes:
            raise BodyTooLargeError(declared, max_bytes)
        if declared > SMALL_BYTES:
            load.expect(declared)
        body = await incoming.read()
        load.hold(len(body))
        if len(body) != incoming.declared_bytes:  # most bodies arrive at once
            body = await _joined(load, incoming, body, max_bytes)
        context.request_bytes = len(body)
        return body


def _understand(context: RequestContext, metadata: Mapping[str, Any] | None, body: bytes, parsed: RequestJson) -> None:
    """Check the members that the gateway acts on, and set what the stages read of the body."""
    json, outline = parsed
    slug = json.get("model")
    if not isinstance(slug, str) or not slug:
        raise MalformedRequestError("the body must have a member 'model' that is a string")
    context.output_cap = guarded_members.check_members(json)
    context.answers = 1 if _COUNTING.isdisjoint(json) else call_bound.answers(json, context.facts.path)
    if metadata is None and "metadata" in json:
        metadata = _body_metadata(json, body, outline)
    context.body = body
    context.json = json
    context.outline = outline
    context.slug = slug
    context.streaming = json.get("stream") is True
    context.metadata = metadata


async def _joined(load: Load, incoming: Incoming, part: bytes, max_bytes: int) -> bytes:
    """The whole body. It begins with `part`, whose memory is held already; hold memory as bytes arrive."""
    parts: list[bytes] = []
    whole = BytesIO()  # grows in place and hands its buffer over: joining 100 MB would block the loop
    is_short = (incoming.declared_bytes or max_bytes) <= JOINED_BYTES
    add = parts.append if is_short else whole.write
    while part:
        if load.held_bytes > max_bytes:
            raise BodyTooLargeError(load.held_bytes, max_bytes)
        add(part)
        part = await incoming.read(min(load.held_bytes, PIECE_BYTES))
        load.hold(len(part))
    return b"".join(parts) if is_short else whole.getvalue()


def _body_facts(context: RequestContext) -> BodyFacts:
    """Check what the head says about the body."""
    incoming = context.incoming
    facts = context.facts
    if facts.purpose not in (_INFER, _COUNT) or incoming.method != "POST":
        raise _unserved(facts.purpose)
    _check_encoding(incoming)
    described = incoming.header("x-request-metadata")
    metadata = _header_metadata(described) if described is not None else None
    return BodyFacts(facts.path in _FORM_PATHS and is_form(incoming.header("content-type")), metadata)


def _check_encoding(incoming: Incoming) -> None:
    if incoming.header("content-encoding") not in (None, "identity"):
        raise EncodedBodyError


def _purpose(path: str) -> Purpose:
    if path.startswith(MODEL_PREFIX):
        return _LIST
    return _PURPOSES.get(path) or (Purpose.INVOKE if path.startswith(_INVOKE_PREFIXES) else Purpose.UNKNOWN)


def _unserved(purpose: Purpose) -> Exception:
    """Return why this request is not an inference call."""
    if purpose in (_INFER, _COUNT):
        allowed = "POST"
    elif purpose is _LIST:
        allowed = "GET, HEAD"
    else:
        return NoSuchPathError()
    return WrongMethodError(f"this path takes {allowed}", (("allow", allowed),))


def _header_metadata(value: str) -> Mapping[str, Any]:
    raw = value.encode("utf-8", "surrogateescape")
    if len(raw) > MAX_METADATA_BYTES:
        raise MalformedRequestError(f"x-request-metadata is larger than {MAX_METADATA_BYTES} bytes")
    try:
        metadata = orjson.loads(raw)
    except orjson.JSONDecodeError:
        metadata = None
    if not isinstance(metadata, dict):
        raise MalformedRequestError("x-request-metadata must be a JSON object")
    if not exact_json.has_only_text(metadata):
        _metadata_bytes(metadata)
        return exact_json.read_object(raw.decode())
    return metadata


def _body_metadata(json: dict[str, Any], body: bytes, outline: Outline | None) -> Mapping[str, Any] | None:
    metadata: dict[str, Any] | None = json["metadata"]
    if metadata is None:
        return None
    _check_size(metadata)
    member = None if exact_json.has_only_text(metadata) else json_edit.find_member(body, json, "metadata", outline)
    if member is not None:  # of a duplicated member the last one, as in orjson
        metadata = exact_json.read_object(body[member.start : member.end].decode())
        _check_size(metadata)
    return metadata


def _check_size(metadata: Mapping[str, Any]) -> None:
    if _metadata_bytes(metadata) > MAX_BODY_METADATA_BYTES:
        raise MalformedRequestError(f"metadata is larger than {MAX_BODY_METADATA_BYTES} bytes")


def _metadata_bytes(metadata: Mapping[str, Any]) -> int:
    """Return the size of the metadata, nested eight levels deep: the journal, batches and webhooks nest it less."""
    try:
        return len(orjson.dumps([[[[[[[[metadata]]]]]]]]))
    except orjson.JSONEncodeError as error:
        raise MalformedRequestError("metadata is nested too deeply") from error
