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
    """Raises `UntranslatableError` for what the middle cannot hold, naming the field."""
    require_known_members(body, "", _KNOWN, _NEUTRAL)
    given = {name: value for name, value in body.items() if value is not None}
    cap = _first(given, _CAPS)
    user = _first(given, _USERS)
    tools = read_tools(given)
    return Request(
        turns=read_turns(require_list(body.get("messages"), "messages")),
        stream=require_flag(given.get("stream", False), "stream"),
        include_usage=_include_usage(given),
        max_output_tokens=require_integer(given[cap], cap) if cap else None,
        sampling=_sampling(given),
        tools=tools,
        tool_choice=read_tool_choice(given, tools),
        parallel_tool_calls=_flag(given, "parallel_tool_calls"),
        output_format=_output_format(given),
        reasoning=_reasoning(given),
        verbosity=_word(given, "verbosity", _VERBOSITIES, neutral=("medium",)),
        user=require_text(given[user], user) if user else None,
        service_tier=_service_tier(given),
        cache=_object(given, "cache_control"),
        cache_key=require_text(given["prompt_cache_key"], "prompt_cache_key") if "prompt_cache_key" in given else None,
        fields={_SETTINGS[name]: name for name in given if name in _SETTINGS}
        | ({"max_output_tokens": cap} if cap else {})
        | ({"user": user} if user else {}),
    )


def _first(given: Json, names: tuple[str, ...]) -> str:
    """The first of these members that was sent; "" if none was."""
    return next((name for name in names if name in given), "")


def _include_usage(given: Json) -> bool:
    options = require_object(given.get("stream_options", {}), "stream_options")
    require_known_members(options, "stream_options", frozenset(("include_usage", "include_obfuscation")), {})
    return bool(options.get("include_usage"))


def _sampling(given: Json) -> Sampling:
    return Sampling(
        temperature=_number(given, "temperature"),
        top_p=_number(given, "top_p"),
        stop=_stops(given.get("stop", [])),
        seed=_integer(given, "seed"),
        frequency_penalty=_number(given, "frequency_penalty") or None,
        presence_penalty=_number(given, "presence_penalty") or None,
        logit_bias=_object(given, "logit_bias") or None,
        answers=_integer(given, "n") if given.get("n") != 1 else None,
        logprobs=_flag(given, "logprobs") or False,
        top_logprobs=_integer(given, "top_logprobs") or None,
    )


def _stops(stop: object) -> list[str]:
    if isinstance(stop, str):
        return [stop]
    return [require_text(entry, f"stop.{number}") for number, entry in enumerate(require_list(stop, "stop"))]


def _output_format(given: Json) -> OutputFormat | None:
    asked = require_object(given.get("response_format", {"type": "text"}), "response_format")
    require_known_members(asked, "response_format", frozenset(("type", "json_schema")), {})
    if asked.get("type") == "text":
        return None
    if asked.get("type") == JSON_OBJECT:
        return OutputFormat(JSON_OBJECT)
    if asked.get("type") != JSON_SCHEMA:
        raise UntranslatableError("response_format.type")
    return _schema_format(require_object(asked.get("json_schema"), "response_format.json_schema"))


def _schema_format(asked: Json) -> OutputFormat:
    path = "response_format.json_schema"
    require_known_members(asked, path, frozenset(("name", "description", "schema", "strict")), {})
    given = {name: value for name, value in asked.items() if value is not None}
    return OutputFormat(
        JSON_SCHEMA,
        schema=require_object(given["schema"], f"{path}.schema") if "schema" in given else None,
        name=require_text(given["name"], f"{path}.name") if "name" in given else None,
        description=require_text(given["description"], f"{path}.description") if "description" in given else None,
        strict=require_flag(given["strict"], f"{path}.strict") if "strict" in given else None,
    )


def _reasoning(given: Json) -> ReasoningSettings | None:
    effort = _word(given, "reasoning_effort", _EFFORTS)
    if effort is None:
        return None
    return ReasoningSettings(enabled=False) if effort == "none" else ReasoningSettings(enabled=True, effort=effort)


def _service_tier(given: Json) -> str | None:
    tier = given.get("service_tier")
    return None if tier is None or tier in _DEFAULT_TIERS else require_text(tier, "service_tier")


def _word(given: Json, name: str, words: tuple[str, ...], neutral: tuple[str, ...] = ()) -> str | None:
    value = given.get(name)
    if value is None or value in neutral:
        return None
    if value not in words:
        raise UntranslatableError(name, f"must be one of {', '.join(words)}")
    return str(value)


def _number(given: Json, name: str) -> float | None:
    return require_number(given[name], name) if name in given else None


def _integer(given: Json, name: str) -> int | None:
    return require_integer(given[name], name) if name in given else None


def _flag(given: Json, name: str) -> bool | None:
    return require_flag(given[name], name) if name in given else None


def _object(given: Json, name: str) -> Json | None:
    return require_object(given[name], name) if name in given else None
