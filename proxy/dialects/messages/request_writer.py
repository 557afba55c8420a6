"""Writes a request for a Messages target.

Pure. Refuses what Messages cannot say, with the caller's name of the member.

See docs/reference/inference.md#translation.
"""

from proxy.dialects.messages.request_reader import effort_of_budget
from proxy.dialects.messages.schemas import closed_schema
from proxy.dialects.messages.tool_writer import write_choice, write_tool
from proxy.dialects.messages.turn_writer import TurnWriter, has_open_tool_loop
from proxy.dialects.middle.request import (
    JSON_SCHEMA,
    NAMED,
    REQUIRED,
    Json,
    OutputFormat,
    ReasoningSettings,
    Request,
    Sampling,
)

DEFAULT_MAX_TOKENS = 4096
"""Messages requires a cap on output tokens; every model of that dialect accepts this one."""
DEFAULT_THINKING_TOKENS = 12288
"""Added to the default cap where the model decides how much to think: its thoughts count as output."""
MAX_TEMPERATURE = 1


def write_request(request: Request, model: str, provider: str) -> Json:
    """The body for a target. Raises `UntranslatableError`. May set `reasoning_off`. All providers are served alike."""
    _refuse_what_is_missing(request)
    turns = TurnWriter()
    system, messages = turns.write(request.turns)
    thinking = _thinking(request, messages)
    body: Json = {"model": model, "max_tokens": _max_tokens(request, thinking), "messages": messages}
    if system:
        body["system"] = system
    body |= _sampling(request)
    body |= thinking | _output_config(request)
    if request.tools:
        body["tools"] = [write_tool(tool) for tool in request.tools]
    if (choice := write_choice(request)) is not None:
        body["tool_choice"] = choice
    if request.user is not None:
        body["metadata"] = {"user_id": request.user}
    if request.cache is not None:
        body["cache_control"] = request.cache
    return body | ({"stream": True} if request.stream else {})


def _refuse_what_is_missing(request: Request) -> None:
    sampling = request.sampling
    for setting, given in (
        ("seed", sampling.seed is not None),
        ("frequency_penalty", sampling.frequency_penalty),
        ("presence_penalty", sampling.presence_penalty),
        ("logit_bias", sampling.logit_bias),
        ("answers", (sampling.answers or 1) != 1),
        ("logprobs", sampling.logprobs),
        ("top_logprobs", sampling.top_logprobs),
        ("verbosity", request.verbosity is not None),
        ("service_tier", request.service_tier is not None),
    ):
        if given:
            raise request.refuse(setting)


def _max_tokens(request: Request, thinking: Json) -> int:
    if request.max_output_tokens is not None:
        return request.max_output_tokens
    if not thinking:
        return DEFAULT_MAX_TOKENS
    budget: int = thinking["thinking"].get("budget_tokens", DEFAULT_THINKING_TOKENS)
    return DEFAULT_MAX_TOKENS + budget


def _sampling(request: Request) -> Json:
    sampling: Sampling = request.sampling
    if sampling.temperature is not None and not 0 <= sampling.temperature <= MAX_TEMPERATURE:
        raise request.refuse("temperature", f"the target of this slug takes 0 to {MAX_TEMPERATURE}")
    given = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k")}
    written = {name: value for name, value in given.items() if value is not None}
    return written | ({"stop_sequences": sampling.stop} if sampling.stop else {})


def _thinking(request: Request, messages: list[Json]) -> Json:
    """The member `thinking`, where it is wanted and the vendor would accept it."""
    settings = request.reasoning
    if settings is None or not settings.enabled:
        return {}
    if request.tool_choice is not None and request.tool_choice.kind in (REQUIRED, NAMED):
        request.reasoning_off = "the tool choice forces a call"
        return {}
    if has_open_tool_loop(messages):
        request.reasoning_off = "the turn began without this vendor's reasoning"
        return {}
    return {"thinking": _thinking_of(settings)}


def _thinking_of(settings: ReasoningSettings) -> Json:
    thinking: Json = {"type": "adaptive"}
    if settings.budget_tokens is not None:
        thinking = {"type": "enabled", "budget_tokens": settings.budget_tokens}
    if settings.visible is not None:
        thinking["display"] = "summarized" if settings.visible else "omitted"
    return thinking


def _output_config(request: Request) -> Json:
    config: Json = {}
    if request.output_format is not None:
        config["format"] = _format(request, request.output_format)
    if (effort := _effort(request)) is not None:
        config["effort"] = effort
    return {"output_config": config} if config else {}


def _effort(request: Request) -> str | None:
    """The effort; None if the budget of thinking tokens says the same."""
    settings = request.reasoning
    if settings is None or settings.effort in (None, "none"):
        return None
    if settings.budget_tokens is not None and settings.effort == effort_of_budget(settings.budget_tokens):
        return None
    return "low" if settings.effort == "minimal" else settings.effort


def _format(request: Request, output: OutputFormat) -> Json:
    if output.kind != JSON_SCHEMA or output.schema is None:
        raise request.refuse("output_format", "the target of this slug needs a JSON schema")
    schema = output.schema if output.strict else closed_schema(output.schema, request.field_of("output_format"))
    if output.description and "description" not in schema:
        schema = schema | {"description": output.description}
    return {"type": "json_schema", "schema": schema}
