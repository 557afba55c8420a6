"""Writes a Responses request for a target. Raises `UntranslatableError` for what the dialect cannot say.

Pure. `store` is always false: the gateway's callers keep their conversations themselves.

See docs/reference/inference.md#translation.
"""

from hashlib import sha256

from policy.endpoints import VENDOR_B
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import (
    ASSISTANT,
    JSON_OBJECT,
    JSON_SCHEMA,
    NAMED,
    SYSTEM,
    ConversationTurn,
    OutputFormat,
    ReasoningSettings,
    Refusal,
    Request,
    Text,
    Tool,
)
from proxy.dialects.responses.item_writer import write_items
from proxy.errors import UntranslatableError

DEFAULT_FORMAT_NAME = "output"
MAX_USER_CHARS = 64

_LOW_BUDGET = 4096
_MEDIUM_BUDGET = 16384
"""Below these budgets, in tokens, the effort is low or medium."""
_UNKNOWN_NUMBERS = ("top_k", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "stop")


def write_request(request: Request, model: str, provider: str) -> Json:
    _require_expressible(request)
    instructions, turns = _instructions(request)
    body: Json = {"model": model, "input": write_items(turns, developer=provider == VENDOR_B), "store": False}
    if instructions:
        body["instructions"] = instructions
    if request.stream:
        body["stream"] = True
    settings = {
        "max_output_tokens": request.max_output_tokens,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_logprobs": request.sampling.top_logprobs or None,
        "prompt_cache_key": request.cache_key,
        "service_tier": request.service_tier,
    }
    body |= {name: value for name, value in settings.items() if value is not None}
    body |= _tools(request) | _text(request) | _user(request)
    include = ["message.output_text.logprobs"] if request.sampling.logprobs else []
    reasoning = _reasoning(request)
    if reasoning:
        body["reasoning"] = reasoning
        if reasoning.get("effort") != "none":
            include.append("reasoning.encrypted_content")
    return body | ({"include": include} if include else {})


def _require_expressible(request: Request) -> None:
    for name in _UNKNOWN_NUMBERS:
        if getattr(request.sampling, name) not in (None, []):
            raise request.refuse(name)
    if (request.sampling.answers or 1) > 1:
        raise request.refuse("answers")
    last = request.turns[-1] if request.turns else None
    if (
        last is not None
        and last.role == ASSISTANT
        and isinstance(last.parts[-1] if last.parts else None, Text | Refusal)
    ):
        raise UntranslatableError(last.field, "the target of this slug starts a new message and continues none")


def _instructions(request: Request) -> tuple[str, list[ConversationTurn]]:
    """A leading system turn of one text is the instructions; the other turns are items, of which there must be one.

    The vendor answers with a JSON object only where an item says so: instructions do not count.
    """
    turns = request.turns
    if request.output_format is not None and request.output_format.kind == JSON_OBJECT:
        return "", turns
    if len(turns) > 1 and turns[0].role == SYSTEM and len(turns[0].parts) == 1 and not turns[0].name:
        part = turns[0].parts[0]
        if isinstance(part, Text):
            return part.text, turns[1:]
    return "", turns


def _tools(request: Request) -> Json:
    body: Json = {}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    choice = request.tool_choice
    if choice is not None:
        body["tool_choice"] = choice.kind
        if choice.kind == NAMED:
            custom = any(tool.name == choice.name and tool.custom is not None for tool in request.tools)
            body["tool_choice"] = {"type": "custom" if custom else "function", "name": choice.name}
    if request.parallel_tool_calls is not None and request.tools:
        body["parallel_tool_calls"] = request.parallel_tool_calls
    return body


def _tool(tool: Tool) -> Json:
    about = {"description": tool.description} if tool.description is not None else {}
    if tool.custom is not None:
        return {"type": "custom", "name": tool.name, "format": tool.custom, **about}
    schema = {"type": "object", "properties": {}} if tool.schema is None else tool.schema
    return {"type": "function", "name": tool.name, "parameters": schema, "strict": tool.strict or False, **about}


def _text(request: Request) -> Json:
    text: Json = {}
    if request.output_format is not None:
        text["format"] = _format(request.output_format)
    if request.verbosity is not None:
        text["verbosity"] = request.verbosity
    return {"text": text} if text else {}


def _format(form: OutputFormat) -> Json:
    if form.kind != JSON_SCHEMA:
        return {"type": form.kind}
    members: Json = {"type": JSON_SCHEMA, "name": form.name or DEFAULT_FORMAT_NAME, "schema": form.schema or {}}
    more = {"description": form.description, "strict": form.strict}
    return members | {name: value for name, value in more.items() if value is not None}


def _user(request: Request) -> Json:
    """The end user's id; a hash of one that is too long, which is as stable."""
    user = request.user
    if user is None:
        return {}
    member = "user" if request.field_of("user") == "user" else "safety_identifier"
    return {member: user if len(user) <= MAX_USER_CHARS else sha256(user.encode()).hexdigest()}


def _reasoning(request: Request) -> Json:
    """Return the settings; none where the caller said nothing, or where thinking is off by default in its dialect."""
    settings = request.reasoning
    if settings is None:
        return {}
    said_by_effort = request.field_of("reasoning").startswith("reasoning")
    if settings.enabled is False:
        return {"effort": "none"} if said_by_effort else {}
    effort = _effort(settings)
    if effort == "max" and not said_by_effort:
        effort = "xhigh"
    members = {"effort": effort} if effort else {}
    return members if settings.visible is False else members | {"summary": "auto"}


def _effort(settings: ReasoningSettings) -> str | None:
    if settings.effort is not None or settings.budget_tokens is None:
        return settings.effort
    if settings.budget_tokens < _LOW_BUDGET:
        return "low"
    return "medium" if settings.budget_tokens < _MEDIUM_BUDGET else "high"
