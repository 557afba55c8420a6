"""Reads a Chat Completions request into the model in the middle.

Pure. Skips members that request nothing, and hints about OpenAI's prompt cache; refuses what the middle cannot hold.
"""

from proxy.dialects.chat_completions.tool_reader import read_tool_choice, read_tools
from proxy.dialects.chat_completions.turn_reader import read_turns
from proxy.dialects.middle.reading import (
    Json,
    require_flag,
    require_integer,
    require_known_members,
    require_list,
    require_number,
    require_object,
    require_text,
)
from proxy.dialects.middle.request import JSON_OBJECT, JSON_SCHEMA, OutputFormat, ReasoningSettings, Request, Sampling
from proxy.errors import UntranslatableError

_CAPS = ("max_completion_tokens", "max_tokens")
_USERS = ("safety_identifier", "user")
_SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "stop": "stop",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
    "n": "answers",
    "logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
    "tools": "tools",
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "parallel_tool_calls",
    "response_format": "output_format",
    "reasoning_effort": "reasoning",
    "verbosity": "verbosity",
    "service_tier": "service_tier",
    "cache_control": "cache",
    "prompt_cache_key": "cache_key",
}
"""The name in the middle of each member that is a setting."""
_SKIPPED = ("metadata", "prompt_cache_retention", "prompt_cache_options")
_KNOWN = frozenset(("model", "messages", "stream", "stream_options", *_CAPS, *_USERS, *_SETTINGS, *_SKIPPED))
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "modalities": (["text"],),
    "store": (False,),
    "functions": ([],),
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_VERBOSITIES = ("low", "medium", "high")
_DEFAULT_TIERS = ("auto", "default")


def read_request(body: Json) -> Request:
    """Read a request. Raises `UntranslatableError` for what the middle cannot hold, naming the field."""
    require_known_members(body, "", _KNOWN, _NEUTRAL)
    members = {name: value for name, value in body.items() if value is not None}
    key = members.get("prompt_cache_key")
    cap = _first(members, _CAPS)
    user = _first(members, _USERS)
    tools = read_tools(members)
    return Request(
        turns=read_turns(require_list(body.get("messages"), "messages")),
        stream=require_flag(members.get("stream", False), "stream"),
        include_usage=_include_usage(members),
        max_output_tokens=require_integer(members[cap], cap) if cap else None,
        sampling=_sampling(members),
        tools=tools,
        tool_choice=read_tool_choice(members, tools),
        parallel_tool_calls=_flag(members, "parallel_tool_calls"),
        output_format=_output_format(members),
        reasoning=_reasoning(members),
        verbosity=_word(members, "verbosity", _VERBOSITIES, neutral=("medium",)),
        user=require_text(members[user], user) if user else None,
        service_tier=_service_tier(members),
        cache=_object(members, "cache_control"),
        cache_key=require_text(key, "prompt_cache_key") if key is not None else None,
        fields={_SETTINGS[name]: name for name in members if name in _SETTINGS}
        | ({"max_output_tokens": cap} if cap else {})
        | ({"user": user} if user else {}),
    )


def _first(members: Json, names: tuple[str, ...]) -> str:
    """Return the first of these members that was sent; "" if none was."""
    return next((name for name in names if name in members), "")


def _include_usage(members: Json) -> bool:
    options = require_object(members.get("stream_options", {}), "stream_options")
    require_known_members(options, "stream_options", frozenset(("include_usage", "include_obfuscation")), {})
    return bool(options.get("include_usage"))


def _sampling(members: Json) -> Sampling:
    return Sampling(
        temperature=_number(members, "temperature"),
        top_p=_number(members, "top_p"),
        stop=_stops(members.get("stop", [])),
        seed=_integer(members, "seed"),
        frequency_penalty=_number(members, "frequency_penalty") or None,
        presence_penalty=_number(members, "presence_penalty") or None,
        logit_bias=_object(members, "logit_bias") or None,
        answers=_integer(members, "n") if members.get("n") != 1 else None,
        logprobs=_flag(members, "logprobs") or False,
        top_logprobs=_integer(members, "top_logprobs") or None,
    )


def _stops(stop: object) -> list[str]:
    if isinstance(stop, str):
        return [stop]
    return [require_text(entry, f"stop.{number}") for number, entry in enumerate(require_list(stop, "stop"))]


def _output_format(members: Json) -> OutputFormat | None:
    form = require_object(members.get("response_format", {"type": "text"}), "response_format")
    require_known_members(form, "response_format", frozenset(("type", "json_schema")), {})
    if form.get("type") == "text":
        return None
    if form.get("type") == JSON_OBJECT:
        return OutputFormat(JSON_OBJECT)
    if form.get("type") != JSON_SCHEMA:
        raise UntranslatableError("response_format.type")
    return _schema_format(require_object(form.get("json_schema"), "response_format.json_schema"))


def _schema_format(form: Json) -> OutputFormat:
    path = "response_format.json_schema"
    require_known_members(form, path, frozenset(("name", "description", "schema", "strict")), {})
    members = {name: value for name, value in form.items() if value is not None}
    return OutputFormat(
        JSON_SCHEMA,
        schema=require_object(members["schema"], f"{path}.schema") if "schema" in members else None,
        name=require_text(members["name"], f"{path}.name") if "name" in members else None,
        description=require_text(members["description"], f"{path}.description") if "description" in members else None,
        strict=require_flag(members["strict"], f"{path}.strict") if "strict" in members else None,
    )


def _reasoning(members: Json) -> ReasoningSettings | None:
    effort = _word(members, "reasoning_effort", _EFFORTS)
    if effort is None:
        return None
    return ReasoningSettings(enabled=False) if effort == "none" else ReasoningSettings(enabled=True, effort=effort)


def _service_tier(members: Json) -> str | None:
    tier = members.get("service_tier")
    return None if tier is None or tier in _DEFAULT_TIERS else require_text(tier, "service_tier")


def _word(members: Json, name: str, words: tuple[str, ...], neutral: tuple[str, ...] = ()) -> str | None:
    value = members.get(name)
    if value is None or value in neutral:
        return None
    if value not in words:
        raise UntranslatableError(name, f"must be one of {', '.join(words)}")
    return str(value)


def _number(members: Json, name: str) -> float | None:
    return require_number(members[name], name) if name in members else None


def _integer(members: Json, name: str) -> int | None:
    return require_integer(members[name], name) if name in members else None


def _flag(members: Json, name: str) -> bool | None:
    return require_flag(members[name], name) if name in members else None


def _object(members: Json, name: str) -> Json | None:
    return require_object(members[name], name) if name in members else None
