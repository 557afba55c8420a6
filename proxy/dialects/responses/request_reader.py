"""Reads a caller's Responses request. Raises `UntranslatableError` for what only the vendor's own servers can do.

Pure. The gateway stores nothing: `store` counts as false, and what needs stored responses is refused.

See docs/reference/inference.md#translation.
"""

from collections import Counter

from proxy.dialects.middle.reading import (
    Json,
    objects_at,
    optional,
    require_choice,
    require_flag,
    require_integer,
    require_known_members,
    require_list,
    require_number,
    require_object,
    require_text,
)
from proxy.dialects.middle.request import (
    JSON_OBJECT,
    JSON_SCHEMA,
    SYSTEM,
    USER,
    ConversationTurn,
    OutputFormat,
    ReasoningSettings,
    Request,
    Text,
)
from proxy.dialects.responses.item_reader import read_items
from proxy.dialects.responses.tool_reader import read_tool_choice, read_tools
from proxy.errors import UntranslatableError

ECHOED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
)
"""Members that an answer repeats."""
_READ = frozenset((*ECHOED, "input", "include", "model", "service_tier", "stream"))
_HINTS = frozenset(
    (
        "client_metadata",
        "context_management",
        "prompt_cache_options",
        "prompt_cache_retention",
        "store",
        "stream_options",
    )
)
"""Members about cost, caches and telemetry; and `store`, which counts as false."""
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "image": ({}, {"context_compression": "auto"}),
    "truncation": ("disabled",),
}
_INCLUDABLE = frozenset(
    (
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    )
)
"""All but the logprobs are about tools that only the vendor runs, or are included anyway."""
_REFUSED = {
    "background": "must be false: the gateway keeps no responses to fetch later",
    "conversation": "the gateway keeps no conversations: send the whole conversation in `input`",
    "previous_response_id": "the gateway keeps no responses: send the whole conversation in `input`",
    "prompt": "the gateway keeps no prompt templates: send the text itself",
}
_DEFAULT_TIERS = ("auto", "default")
_EFFORTS = {effort: effort for effort in ("minimal", "low", "medium", "high", "xhigh", "max")}
_VERBOSITIES = {"low": "low", "medium": "", "high": "high"}


def read_request(body: Json) -> Request:
    for name, reason in _REFUSED.items():
        if body.get(name) not in (None, *_NEUTRAL.get(name, ())):
            raise UntranslatableError(name, reason)
    require_known_members(body, "", _READ | _HINTS, _NEUTRAL)
    request = Request([], stream=body.get("stream") is True)
    request.turns = _conversation_turns(body, request)
    _read_tools(body, request)
    _read_numbers(body, request)
    _read_text(body, request)
    _read_reasoning(body, request)
    _read_who_and_where(body, request)
    request.echo = {name: body[name] for name in ECHOED if body.get(name) is not None}
    return request


def _conversation_turns(body: Json, request: Request) -> list[ConversationTurn]:
    turns: list[ConversationTurn] = []
    if body.get("instructions"):
        text = require_text(body["instructions"], "instructions")
        turns.append(ConversationTurn(SYSTEM, [Text(text, field="instructions")], field="instructions"))
    value = body.get("input")
    if isinstance(value, str):
        return [*turns, ConversationTurn(USER, [Text(value, field="input")], field="input")]
    if value is None:
        raise UntranslatableError("input", "is required")
    items = []
    for item, field in objects_at(body, "input", "input"):
        if item.get("type") == "additional_tools":
            read_tools(item, f"{field}.tools", request)
        else:
            items.append((item, field))
    return turns + read_items(items)


def _read_tools(body: Json, request: Request) -> None:
    read_tools(body, "tools", request)
    times = Counter(tool.name for tool in request.tools)
    for tool in request.tools:
        if tool.namespaced and times[tool.name] > 1:
            raise UntranslatableError(f"{tool.field}.name", "collides with another tool's name")
    if body.get("tool_choice") is not None:
        request.tool_choice = read_tool_choice(body["tool_choice"], request)
        request.fields["tool_choice"] = "tool_choice"
    if body.get("parallel_tool_calls") is not None:
        request.parallel_tool_calls = require_flag(body["parallel_tool_calls"], "parallel_tool_calls")
        request.fields["parallel_tool_calls"] = "parallel_tool_calls"


def _read_numbers(body: Json, request: Request) -> None:
    sampling = request.sampling
    fields = request.fields
    if body.get("max_output_tokens") is not None:
        request.max_output_tokens = require_integer(body["max_output_tokens"], "max_output_tokens")
        fields["max_output_tokens"] = "max_output_tokens"
    if body.get("temperature") is not None:
        sampling.temperature = require_number(body["temperature"], "temperature")
        fields["temperature"] = "temperature"
    if body.get("top_p") is not None:
        sampling.top_p = require_number(body["top_p"], "top_p")
        fields["top_p"] = "top_p"
    if body.get("top_logprobs"):
        sampling.top_logprobs = require_integer(body["top_logprobs"], "top_logprobs")
        sampling.logprobs = True
        fields["top_logprobs"] = fields["logprobs"] = "top_logprobs"
    for number, name in enumerate(require_list(body.get("include") or [], "include")):
        if not isinstance(name, str) or name not in _INCLUDABLE:
            raise UntranslatableError(f"include.{number}")
        if name == "message.output_text.logprobs":
            sampling.logprobs = True
            fields["logprobs"] = f"include.{number}"


def _read_text(body: Json, request: Request) -> None:
    if body.get("text") is None:
        return
    text = require_object(body["text"], "text")
    require_known_members(text, "text", frozenset(("format", "verbosity")), {})
    if text.get("verbosity") is not None:
        request.verbosity = require_choice(text["verbosity"], "text.verbosity", _VERBOSITIES) or None
        request.fields["verbosity"] = "text.verbosity"
    if text.get("format") is not None:
        request.output_format = _output_format(require_object(text["format"], "text.format"))
        request.fields["output_format"] = "text.format"


def _output_format(form: Json) -> OutputFormat | None:
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat(JSON_OBJECT)
    if kind != "json_schema":
        raise UntranslatableError("text.format.type")
    require_known_members(form, "text.format", frozenset(("type", "name", "schema", "description", "strict")), {})
    schema = require_object(form.get("schema"), "text.format.schema")
    name = require_text(form.get("name"), "text.format.name")
    description = optional(require_text, form, "description", "text.format")
    return OutputFormat(JSON_SCHEMA, schema, name, description, optional(require_flag, form, "strict", "text.format"))


def _read_reasoning(body: Json, request: Request) -> None:
    if body.get("reasoning") is None:
        return
    settings = require_object(body["reasoning"], "reasoning")
    names = frozenset(("effort", "summary", "generate_summary", "context"))
    require_known_members(settings, "reasoning", names, {"mode": ("standard",)})
    effort = settings.get("effort")
    visible = True if settings.get("summary") or settings.get("generate_summary") else None
    if effort is None and visible is None:
        return
    request.fields["reasoning"] = "reasoning.effort" if effort is not None else "reasoning"
    if effort == "none":
        request.reasoning = ReasoningSettings(enabled=False, visible=visible)
    elif effort is None:
        request.reasoning = ReasoningSettings(visible=visible)
    else:
        word = require_choice(effort, "reasoning.effort", _EFFORTS)
        request.reasoning = ReasoningSettings(enabled=True, effort=word, visible=visible)


def _read_who_and_where(body: Json, request: Request) -> None:
    for name in ("user", "safety_identifier"):
        if body.get(name) is not None:
            request.user = require_text(body[name], name)
            request.fields["user"] = name
    if body.get("prompt_cache_key") is not None:
        request.cache_key = require_text(body["prompt_cache_key"], "prompt_cache_key")
    tier = body.get("service_tier")
    if tier is not None and tier not in _DEFAULT_TIERS:
        request.service_tier = require_text(tier, "service_tier")
        request.fields["service_tier"] = "service_tier"
