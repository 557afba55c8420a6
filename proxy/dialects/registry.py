"""Chooses the dialects of a path and a target, and so how a request is built and its answer read.

The stages use the dialects through this module only. They supply the credential and choose the host. Pure, but for
what a worker remembers of its targets.

See docs/reference/inference.md#dialects.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import orjson

from policy.billing import MAX_REPORTED_TOKENS
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES, VENDOR_B, Target
from proxy.accounting.answer_form import Form, is_media
from proxy.accounting.metering import AnswerReader, DeliveredCounter
from proxy.answers import Headers
from proxy.dialects import passed_paths
from proxy.dialects.answer_translation import TranslatingBodyReader, TranslatingStreamReader, created_s
from proxy.dialects.body_readers import BodyReader, JsonLinesReader, PassThroughReader, UnreadAnswer, WholeAnswers
from proxy.dialects.chat_completions import dialect as chat_dialect
from proxy.dialects.chat_completions import passing as chat_completions
from proxy.dialects.counting import token_count
from proxy.dialects.counting.answer_text import chat_texts
from proxy.dialects.counting.delivered_media import with_media
from proxy.dialects.counting.delivered_text import NoTextCounter, StreamCounter, UnbilledCounter, text_counter
from proxy.dialects.counting.request_text import RequestTokens
from proxy.dialects.dialect_attempt import DialectAttempt
from proxy.dialects.messages import dialect as messages_dialect
from proxy.dialects.middle.bounds import check_bounds
from proxy.dialects.middle.dialect import AnswerContext, Dialect, Json
from proxy.dialects.middle.json_slots import readable_members
from proxy.dialects.middle.request import Request
from proxy.dialects.middle.sealing import FOREIGN_REASONING, MARK, SealKeys, Seals, has_reasoning, open_reasoning
from proxy.dialects.middle.stops import fill_empty_arguments
from proxy.dialects.responses import dialect as responses_dialect
from proxy.dialects.spoken_dialects import SpokenDialects, dialects_of
from proxy.dialects.target_request import adds_stream_options, target_body, target_request
from proxy.dialects.upstream_request import UpstreamRequest
from proxy.dialects.usage.meters import OpenAiMeter, UsageMeter
from proxy.dialects.vendor_rules.narrow_rules import fitted
from proxy.dialects.vendor_rules.tool_names import accepted_names, with_names
from proxy.dialects.vendor_rules.turn_order import results_behind_calls
from proxy.errors import UntranslatableError, UpstreamResetError
from proxy.http_rules.refused_requests import LACKING, REFUSING, is_success, lacks_path, refuses_member
from proxy.json_text.request_json import SHORT_BODY_BYTES
from proxy.json_text.segmented_body import RequestBody
from proxy.records.messages import Received

MIN_RESPONSES_CAP = 16
"""The lowest cap on output tokens that VENDOR_B takes at `/v1/responses`."""
REFUSED = "refused"
"""Marker in place of a dialect, for a target that refuses a member."""

_DIALECTS: Mapping[str, Dialect] = {
    each.name: each for each in (chat_dialect.DIALECT, messages_dialect.DIALECT, responses_dialect.DIALECT)
}
_PATH_DIALECTS = {
    **{dialect.path: name for name, dialect in _DIALECTS.items()},
    **dict.fromkeys((*chat_completions.PATHS, *passed_paths.PATHS), CHAT_COMPLETIONS),
    token_count.PATH: MESSAGES,
}
"""The caller's dialect by path. Other paths serve no inference."""
_BODY_METERS: Mapping[str, Callable[[int], UsageMeter]] = {
    **{path: _DIALECTS[name].new_body_meter for path, name in _PATH_DIALECTS.items() if path not in passed_paths.PATHS},
    chat_completions.EMBEDDINGS_PATH: partial(OpenAiMeter, has_output=False),
}
"""Meters of answers that are no streams, by path."""
_READERS_OF_BLOCKS = {name: dialect.native_reasoning for name, dialect in _DIALECTS.items()}
_MARK = MARK.encode()
_TEXTS = {dialect.path: dialect.texts for dialect in _DIALECTS.values()} | {
    chat_completions.COMPLETIONS_PATH: chat_texts
}
"""Readers of an answer's texts, by the caller's path. Embeddings have none."""


class Dialects:
    """Puts calls to targets, and reads their answers."""

    def __init__(self, clock: Callable[[], float], seal_keys: SealKeys) -> None:
        """`clock`: monotonic seconds."""
        self.whole_answer = WholeAnswers(_BODY_METERS, chat_completions.PATHS).read
        self._spoken = SpokenDialects(clock)
        self._seal_keys = seal_keys
        self._passing: dict[tuple[str, str, tuple[str, ...] | None], DialectAttempt] = {}
        """The attempts of calls that pass unchanged, by path, provider and stated dialects."""

    def first_attempt(self, request: Received, target: Target) -> DialectAttempt:
        """Return the form in which to send the call to `target`.

        Raises `UntranslatableError` if the target cannot be asked this.
        """
        path = request.facts.path
        if path == token_count.PATH:
            return _dialect_attempt(request, target, MESSAGES, (MESSAGES,), self._seals(request, target))
        caller_dialect = _PATH_DIALECTS[path]
        dialect = self._spoken.known(target, caller_dialect)
        if dialect is not None and path == _DIALECTS[caller_dialect].path:
            return _dialect_attempt(request, target, caller_dialect, (dialect,), self._seals(request, target))
        attempt = self._passing.get((path, target.provider, target.dialects))
        if attempt is not None and not self.has_sealed(request):
            if request.streaming and caller_dialect == CHAT_COMPLETIONS:
                chat_completions.adds_include_usage(path, request.json)
            return attempt
        dialects = dialects_of(target, caller_dialect)
        attempt = _dialect_attempt(request, target, caller_dialect, dialects, self._seals(request, target))
        if attempt.json is None:
            self._passing[path, target.provider, target.dialects] = attempt
        return attempt

    @staticmethod
    def has_sealed(request: Received) -> bool:
        """Return whether the caller returns reasoning that another target's translation sealed."""
        body = request.body
        if len(body) <= SHORT_BODY_BYTES and body.find(_MARK) < 0:  # costs less than looking at its turns, or than `in`
            return False
        return has_reasoning(request.json) and body.find(_MARK) >= 0

    def translated_containers(self, request: Received, target: Target) -> int:
        """Return how many objects and lists the first attempt translates or unseals; 0 if the call passes unchanged."""
        caller_dialect = _PATH_DIALECTS[request.facts.path]
        dialect = self._spoken.known(target, caller_dialect) or dialects_of(target, caller_dialect)[0]
        is_other = dialect != caller_dialect or self.has_sealed(request)
        return request.body.count(b"{") + request.body.count(b"[") if is_other else 0

    def may_ask_again(self, request: Received, attempt: DialectAttempt, status: int) -> bool:
        """Return whether an answer with this status may call for another attempt, or teaches something of it."""
        if status in REFUSING:
            return adds_stream_options(request, attempt)
        if request.facts.path == token_count.PATH:
            return is_success(status)
        is_known = not attempt.untried and not attempt.is_translated and attempt.asks_usage
        return not is_known and (status in LACKING or is_success(status))

    def following(
        self, request: Received, target: Target, attempt: DialectAttempt, status: int, refusal: bytes
    ) -> Callable[[], DialectAttempt] | None:
        """Return what makes the next attempt after this answer; None if the answer stands.

        `refusal`: the answer's body, if it may be an error. Remembers for an hour what the target turned out to need.
        This and what is returned raise `UntranslatableError`.
        """
        if adds_stream_options(request, attempt) and refuses_member(status, refusal, chat_completions.USAGE_NAMES):
            return partial(replace, attempt, asks_usage=False)
        if lacks_path(status, refusal):
            if attempt.untried:
                check_bounds(request)
                return partial(_fallback, request, target, attempt, self._seals(request, target))
            if not attempt.is_fallback:
                self._spoken.forget(target, attempt.caller_dialect)
        elif is_success(status):
            self._learn(target, attempt)
        return None

    def _seals(self, request: Received, target: Target) -> Seals:
        """Return the seals for the caller's workspace and the server that `target` is asked at."""
        return Seals(self._seal_keys, request.workspace_id, self._seal_keys.place(target), _READERS_OF_BLOCKS)

    def _learn(self, target: Target, attempt: DialectAttempt) -> None:
        """Remember how this attempt, which `target` answered, differs from the first."""
        if attempt.is_fallback:
            self._spoken.remember(target, attempt.caller_dialect, attempt.dialect)
        if not attempt.asks_usage:
            self._spoken.remember(target, chat_completions.STREAM_OPTIONS, REFUSED)

    def build_request(
        self, request: Received, target: Target, credential: str | None, attempt: DialectAttempt
    ) -> UpstreamRequest:
        """Path and fields of the request for `target`."""
        return target_request(request, target, credential, attempt, _DIALECTS[attempt.dialect])

    def build_body(self, request: Received, target: Target, attempt: DialectAttempt) -> RequestBody:
        """The body of the same. Raises `UntranslatableError` if the target's dialect cannot express it."""
        if request.streaming:
            attempt = self._as_known(target, attempt)
        try:
            return target_body(request, target, attempt)
        except orjson.JSONEncodeError as error:  # orjson parses deeper nesting than it serializes
            raise UntranslatableError("body", "nested too deeply to be written anew") from error

    def _as_known(self, target: Target, attempt: DialectAttempt) -> DialectAttempt:
        """The attempt without what `target` is known to refuse."""
        refusing = self._spoken.known(target, chat_completions.STREAM_OPTIONS)
        return attempt if refusing is None else replace(attempt, asks_usage=False)

    def own_answer(self, request: Received, target: Target) -> bytes | None:
        """The JSON that answers the request without its target; None if the target is asked."""
        if request.facts.path != token_count.PATH:
            return None
        lacks_path = any(self._spoken.known(target, lacked) for lacked in (token_count.PATH, MESSAGES))
        return token_count.estimate(request) if lacks_path or not token_count.is_asked(target) else None

    def stand_in_answer(self, request: Received, target: Target, status: int, error: bytes) -> bytes | None:
        """The JSON that answers the request in place of this error of its target; None if the error stands.

        From then on `own_answer` answers, for an hour.
        """
        if request.facts.path != token_count.PATH or not lacks_path(status, error):
            return None
        self._spoken.remember(target, token_count.PATH, token_count.ESTIMATED)
        return token_count.estimate(request)

    def unread_answer(
        self,
        request: Received,
        attempt: DialectAttempt,
        content_type: str,
        headers: Headers,
        most: int = MAX_REPORTED_TOKENS,
    ) -> UnreadAnswer:
        """Return this successful answer, whose first bytes choose its reader. Call it while the request's body is here.

        `headers`: the upstream's, names in lower case. `most`: a usage report with a larger figure is rejected.
        """
        passed = passed_paths.PATHS.get(request.facts.path)
        is_file = passed is not None and passed_paths.is_file(passed, request, content_type)
        readers = _Readers(request, attempt, headers, most)
        return UnreadAnswer(
            content_type, request.streaming, readers, is_file=is_file, is_translated=attempt.is_translated
        )

    def delivered_counter(self, request: Received, content_type: str) -> DeliveredCounter:
        """Return the counter of what is delivered to the caller. Call it before the request's body is dropped."""
        if request.facts.path == token_count.PATH:
            return UnbilledCounter()
        if (passed := passed_paths.PATHS.get(request.facts.path)) is not None:
            return passed.count(request, content_type)
        texts = _TEXTS.get(request.facts.path)
        input_tokens = RequestTokens(request)
        if texts is None or is_media(content_type):
            return NoTextCounter(input_tokens)
        return text_counter(input_tokens, texts, with_media(StreamCounter(input_tokens, texts), request.json))


class _Readers:
    """Makes the reader of an answer whose form is known."""

    def __init__(self, request: Received, attempt: DialectAttempt, headers: Headers, most: int) -> None:
        self._request = request
        self._attempt = attempt
        self._created_s = created_s(headers) if attempt.request is not None else 0
        self._most = most
        # The one that is expected is made before the request's body is dropped, which it depends on.
        is_expected = request.streaming or request.facts.path in passed_paths.PATHS
        self._stream = self._new_stream() if is_expected else None

    def __call__(self, form: Form) -> AnswerReader:
        if form is Form.STREAM:
            return self._stream or self._new_stream()
        if self._attempt.request is not None:
            if form is Form.OTHER:
                raise UpstreamResetError("the answer is neither JSON nor a stream")
            return self._translating(self._attempt.request, form)
        if form is Form.OTHER:
            return PassThroughReader()
        path = self._request.facts.path
        slug = self._request.slug
        most = self._most
        passed = passed_paths.PATHS.get(path)
        meter = _BODY_METERS[path](most) if passed is None else passed_paths.body_meter(passed, most)
        is_held = form is Form.JSON and (passed is None or not passed.answers_are_files)
        spoken = _DIALECTS[self._attempt.dialect]
        event_meter = meter if passed is not None else spoken.new_meter(most)
        return (BodyReader if is_held else JsonLinesReader)(slug, meter, event_meter, spoken.holder)

    def _new_stream(self) -> AnswerReader:
        request = self._request
        if self._attempt.request is not None:
            return self._translating(self._attempt.request, Form.STREAM)
        if (passed := passed_paths.PATHS.get(request.facts.path)) is not None:
            return passed_paths.stream_reader(passed, request, self._most)
        return _DIALECTS[self._attempt.dialect].stream_reader(request, self._most)

    def _translating(self, call: Request, form: Form) -> AnswerReader:
        target = _DIALECTS[self._attempt.dialect]
        caller = _DIALECTS[self._attempt.caller_dialect]
        assert self._attempt.seals is not None  # a translation has them
        streams = self._request.streaming
        context = AnswerContext(self._request.slug, call, self._created_s, self._attempt.seals, streams=streams)
        if form is Form.JSON:
            return TranslatingBodyReader(target, caller, context, target.new_body_meter(self._most))
        meter = target.new_meter(self._most)
        return TranslatingStreamReader(target, caller, context, meter, is_lines=form is Form.JSON_LINES)


def _dialect_attempt(
    request: Received, target: Target, caller_dialect: str, dialects: tuple[str, ...], seals: Seals
) -> DialectAttempt:
    """The attempt in the first of `dialects`."""
    dialect, *untried = dialects
    path = request.facts.path
    is_translatable = path == _DIALECTS[caller_dialect].path
    if dialect == caller_dialect:
        if dialect == CHAT_COMPLETIONS and request.streaming:
            chat_completions.adds_include_usage(path, request.json)
        own = _unsealed(request, caller_dialect, seals) if Dialects.has_sealed(request) else None
        stopped = own is not None and "thinking" in request.json and "thinking" not in own
        off = FOREIGN_REASONING if stopped else ""
        others = tuple(untried) if is_translatable and target.dialects is None else ()
        return DialectAttempt(dialect, caller_dialect, others, json=own, reasoning_off=off, left_out=seals.left_out)
    if not is_translatable:
        raise UntranslatableError("model", f"the target of this slug has nothing like {path}")
    call = _DIALECTS[caller_dialect].read_request(request.json | readable_members(request))
    call.turns = results_behind_calls(call.turns)
    for turn in call.turns:
        fill_empty_arguments(turn.parts)
    if request.granted_cap is not None:
        call.max_output_tokens = request.granted_cap
    if dialect == CHAT_COMPLETIONS and RESPONSES in untried and _prefers_responses(call, target):
        dialect = RESPONSES
        untried = [CHAT_COMPLETIONS]
    if target.dialects is not None:
        untried = []  # nothing is left to be found out
    open_reasoning(call.turns, dialect, seals)
    call.left_out += seals.left_out
    body = _written(call, target, dialect, request.slug)
    if request.outline is not None and request.outline.appears_in(call.echo):
        call.echo = {}  # its long strings are gone when the answer comes
    return DialectAttempt(dialect, caller_dialect, tuple(untried), call, body, seals=seals)


def _written(call: Request, target: Target, dialect: str, slug: str) -> Json:
    """Return the body for the target, within its vendor's narrow rules. Notes on `call` what its answer needs."""
    names = accepted_names(call)
    target_call = fitted(with_names(call, names) if names else call, target.provider)
    body = _DIALECTS[dialect].write_request(target_call, target.target_model or slug, target.provider)
    call.tool_names = {short: own for own, short in names.items()}
    call.reasoning_off = target_call.reasoning_off
    return body


def _prefers_responses(call: Request, target: Target) -> bool:
    """Return whether to ask VENDOR_B by Responses: only there it shows its reasoning, and takes it back later.

    Stop sequences, and a lower cap on output than Responses takes, can be said in Chat Completions alone.
    """
    wants_reasoning = call.reasoning is not None and call.reasoning.enabled is not False
    can_say = not call.sampling.stop and (call.max_output_tokens or MIN_RESPONSES_CAP) >= MIN_RESPONSES_CAP
    return target.provider == VENDOR_B and wants_reasoning and can_say


def _fallback(request: Received, target: Target, attempt: DialectAttempt, seals: Seals) -> DialectAttempt:
    """The attempt in the next dialect."""
    following = _dialect_attempt(request, target, attempt.caller_dialect, attempt.untried, seals)
    following.is_fallback = True
    return following


def _unsealed(request: Received, dialect: str, seals: Seals) -> Json:
    """The caller's own body, with sealed reasoning made native again or left out: its vendor cannot read the seal."""
    return _DIALECTS[dialect].without_sealed(request.json | readable_members(request), seals)
