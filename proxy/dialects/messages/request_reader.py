"""Reads a Messages caller's request into the middle.

Pure. Refuses what the middle cannot hold. Skips members that request nothing, and hints about cost.

See docs/reference/inference.md#translation.
"""

from proxy.dialects.messages.block_reader import read_blocks
from proxy.dialects.middle.reading import (
    Json,
    objects_at,
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
    ASSISTANT,
    AUTO,
    JSON_SCHEMA,
    NAMED,
    NONE,
    REQUIRED,
    SYSTEM,
    USER,
    ConversationTurn,
    OutputFormat,
    ReasoningSettings,
    Request,
    Sampling,
    Tool,
    ToolChoice,
)
from proxy.errors import UntranslatableError

_KNOWN = frozenset(
    (
        "model",
        "system",
        "messages",
        "stream",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stop_sequences",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "output_format",
        "metadata",
        "cache_control",
        "context_management",
        "diagnostics",
        "thread",
    )
)
"""`context_management` and `diagnostics` are skipped: the one is a hint about cost, the other changes no answer."""
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "mcp_servers": ([],),
}
_ROLES = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM}
_CHOICES = {"auto": AUTO, "any": REQUIRED, "none": NONE, "tool": NAMED}
_EFFORTS = {name: name for name in ("low", "medium", "high", "xhigh", "max")}
_VISIBLE = {"summarized": "shown", "omitted": "hidden"}
_LOW_BELOW = 4096
_MEDIUM_BELOW = 16384
"""Budgets of thinking tokens."""
_TOOL_MEMBERS = frozenset(
    (
        "type",
        "name",
        "description",
        "input_schema",
        "strict",
        "cache_control",
        "input_examples",
        "eager_input_streaming",
        "defer_loading",
    )
)
"""The last two are hints: when arguments are streamed, and when the model loads the tool."""
_TOOL_NEUTRAL: dict[str, tuple[object, ...]] = {"allowed_callers": (["direct"],)}
_SETTINGS = {
    "stream": "stream",
    "max_tokens": "max_output_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop",
    "tools": "tools",
    "tool_choice": "tool_choice",
    "thinking": "reasoning",
    "metadata": "user",
    "cache_control": "cache",
}
"""The middle's name of each setting of the caller's."""


def read_request(body: Json) -> Request:
    """The request. Raises `UntranslatableError`."""
    require_known_members(body, "", _KNOWN, _NEUTRAL)
    request = Request(turns=_conversation_turns(body), fields=_fields(body))
    if body.get("stream") is not None:
        request.stream = require_flag(body["stream"], "stream")
    if body.get("max_tokens") is not None:
        request.max_output_tokens = _max_tokens(body["max_tokens"])
    if body.get("cache_control") is not None:
        request.cache = require_object(body["cache_control"], "cache_control")
    if body.get("thread") is not None:
        request.echo["thread"] = _thread(require_object(body["thread"], "thread"))
    request.sampling = _sampling(body)
    request.tools = [_tool(tool, field) for tool, field in objects_at(body, "tools", "tools")]
    if body.get("tool_choice") is not None:
        _read_choice(require_object(body["tool_choice"], "tool_choice"), request)
    _read_output(body, request)
    if body.get("metadata") is not None:
        user = require_object(body["metadata"], "metadata").get("user_id")
        request.user = None if user is None else require_text(user, "metadata.user_id")
    return request


def _fields(body: Json) -> dict[str, str]:
    fields = {setting: member for member, setting in _SETTINGS.items() if body.get(member) is not None}
    if "user" in fields:
        fields["user"] = "metadata.user_id"
    if "tool_choice" in fields:
        fields["parallel_tool_calls"] = "tool_choice.disable_parallel_tool_use"
    return fields


def _thread(thread: Json) -> Json:
    """The wish that the vendor stores the conversation, which need not come true; never one to go on from its store."""
    if thread.get("type") != "create":
        raise UntranslatableError("thread", "the target of this slug stores no conversations; send all messages")
    require_known_members(thread, "thread", frozenset(("type",)), {})
    return thread


def _max_tokens(value: object) -> int:
    count = require_integer(value, "max_tokens")
    if count < 1:  # 0 fills a cache and asks for no answer
        raise UntranslatableError("max_tokens", "must be at least 1")
    return count


def _conversation_turns(body: Json) -> list[ConversationTurn]:
    turns: list[ConversationTurn] = []
    if body.get("system"):
        turns.append(ConversationTurn(SYSTEM, read_blocks(body["system"], "system", SYSTEM), field="system"))
    for number, entry in enumerate(require_list(body.get("messages"), "messages")):
        field = f"messages.{number}"
        message = require_object(entry, field)
        require_known_members(message, field, frozenset(("role", "content")), {})
        role = require_choice(message.get("role"), f"{field}.role", _ROLES)
        turns.append(ConversationTurn(role, read_blocks(message.get("content"), f"{field}.content", role), field=field))
    return turns


def _sampling(body: Json) -> Sampling:
    sampling = Sampling()
    if body.get("temperature") is not None:
        sampling.temperature = require_number(body["temperature"], "temperature")
    if body.get("top_p") is not None:
        sampling.top_p = require_number(body["top_p"], "top_p")
    if body.get("top_k") is not None:
        sampling.top_k = require_integer(body["top_k"], "top_k")
    if body.get("stop_sequences") is not None:
        stops = require_list(body["stop_sequences"], "stop_sequences")
        sampling.stop = [require_text(stop, f"stop_sequences.{n}") for n, stop in enumerate(stops)]
    return sampling


def _tool(tool: Json, field: str) -> Tool:
    if tool.get("type") not in (None, "custom"):  # the vendor runs it, or its model was trained on it
        raise UntranslatableError(f"{field}.type")
    require_known_members(tool, field, _TOOL_MEMBERS, _TOOL_NEUTRAL)
    schema = require_object(tool.get("input_schema"), f"{field}.input_schema")
    if tool.get("input_examples"):
        schema = schema | {"examples": require_list(tool["input_examples"], f"{field}.input_examples")}
    middle_tool = Tool(require_text(tool.get("name"), f"{field}.name"), schema=schema, field=field)
    if tool.get("description") is not None:
        middle_tool.description = require_text(tool["description"], f"{field}.description")
    if tool.get("strict") is not None:
        middle_tool.strict = require_flag(tool["strict"], f"{field}.strict")
    if tool.get("cache_control") is not None:
        middle_tool.cache = require_object(tool["cache_control"], f"{field}.cache_control")
    return middle_tool


def _read_choice(choice: Json, request: Request) -> None:
    require_known_members(choice, "tool_choice", frozenset(("type", "name", "disable_parallel_tool_use")), {})
    kind = require_choice(choice.get("type"), "tool_choice.type", _CHOICES)
    name = require_text(choice.get("name"), "tool_choice.name") if kind == NAMED else ""
    request.tool_choice = ToolChoice(kind, name)
    single = choice.get("disable_parallel_tool_use")
    if single is not None and require_flag(single, "tool_choice.disable_parallel_tool_use"):
        request.parallel_tool_calls = False


def _read_output(body: Json, request: Request) -> None:
    """Read the output's form and the settings of thinking."""
    output = require_object(body.get("output_config") or {}, "output_config")
    require_known_members(output, "output_config", frozenset(("effort", "format")), {})
    for container, name, field in (
        (body, "output_format", "output_format"),
        (output, "format", "output_config.format"),
    ):
        if container.get(name) is not None:
            request.output_format = _format(require_object(container[name], field), field)
            request.fields["output_format"] = field
    effort = output.get("effort")
    if effort is not None:
        effort = require_choice(effort, "output_config.effort", _EFFORTS)
        request.fields.setdefault("reasoning", "output_config.effort")
    request.reasoning = _reasoning(require_object(body.get("thinking") or {}, "thinking"), effort)


def _format(member: Json, field: str) -> OutputFormat:
    if member.get("type") != "json_schema":
        raise UntranslatableError(f"{field}.type")
    require_known_members(member, field, frozenset(("type", "schema")), {})
    schema = require_object(member.get("schema"), f"{field}.schema")
    return OutputFormat(JSON_SCHEMA, schema, name="output", strict=True)


def _reasoning(thinking: Json, effort: str | None) -> ReasoningSettings | None:
    kind = thinking.get("type")
    if not thinking:
        return ReasoningSettings(effort=effort) if effort else None
    if kind in ("disabled", "between_tools"):  # what most targets do by default
        return ReasoningSettings(enabled=False, effort=effort) if effort else None
    if kind not in ("enabled", "adaptive"):
        raise UntranslatableError("thinking.type", "must be one of enabled, adaptive, disabled, between_tools")
    require_known_members(thinking, "thinking", frozenset(("type", "budget_tokens", "display")), {})
    settings = ReasoningSettings(enabled=True, effort=effort)
    if thinking.get("display") is not None:
        settings.visible = require_choice(thinking["display"], "thinking.display", _VISIBLE) == "shown"
    if kind == "enabled":
        settings.budget_tokens = require_integer(thinking.get("budget_tokens"), "thinking.budget_tokens")
        settings.effort = effort or effort_of_budget(settings.budget_tokens)
    return settings


def effort_of_budget(tokens: int) -> str:
    """The effort that comes nearest to a budget of thinking tokens."""
    if tokens < _LOW_BELOW:
        return "low"
    return "medium" if tokens < _MEDIUM_BELOW else "high"
