"""Writes a request for a Messages target.

Pure. Refuses what Messages cannot say, with the caller's name of the member.

See docs/reference/inference.md#translation.
"""

from hashlib import sha256

from proxy.dialects.messages.older_models import budget_of_effort, has_adaptive_thinking, has_system_turns
from proxy.dialects.messages.request_reader import effort_of_budget
from proxy.dialects.messages.tool_writer import write_choice, write_tool
from proxy.dialects.messages.turn_writer import TurnWriter, has_open_tool_loop
from proxy.dialects.middle.request import (
    ASSISTANT,
    JSON_SCHEMA,
    NAMED,
    REQUIRED,
    Json,
    OutputFormat,
    Request,
    Sampling,
)
from proxy.dialects.middle.sealing import FOREIGN_REASONING
from proxy.dialects.vendor_rules.schemas import closed_schema

DEFAULT_MAX_TOKENS = 4096
"""Messages requires a cap on output tokens; every model of that dialect accepts this one."""
DEFAULT_THINKING_TOKENS = 12288
"""Tokens added to the default cap where the model decides how much to think: its thoughts count as output."""
MAX_TEMPERATURE = 1
MIN_TOP_P_THINKING = 0.95
MAX_USER_CHARS = 256


def write_request(request: Request, model: str, provider: str) -> Json:
    """The body for a target. Raises `UntranslatableError`. May set `reasoning_off`. All providers are served alike."""
    _refuse_what_is_missing(request)
    if request.verbosity is not None:  # Codex always sends it with the models that it knows
        request.left_out.append(f"{request.field_of('verbosity')} ({request.verbosity})")
    turns = TurnWriter(has_system_turns=has_system_turns(model))
    system, messages = turns.write(request.turns)
    thinking = _thinking(request, messages, model)
    body: Json = {"model": model, "max_tokens": _max_tokens(request, thinking), "messages": messages}
    if system:
        body["system"] = system
    body |= _sampling(request)
    if thinking:
        _refuse_beside_thinking(request.sampling, request)
    body |= thinking | _output_config(request, model)
    if request.tools:
        body["tools"] = [write_tool(tool) for tool in request.tools]
    if (choice := write_choice(request)) is not None:
        body["tool_choice"] = choice
    if request.user is not None:
        body["metadata"] = {"user_id": _user_id(request.user)}
    if request.cache is not None:
        body["cache_control"] = request.cache
    return body | ({"stream": True} if request.stream else {})


def _refuse_what_is_missing(request: Request) -> None:
    sampling = request.sampling
    for setting, is_set in (
        ("seed", sampling.seed is not None),
        ("frequency_penalty", sampling.frequency_penalty),
        ("presence_penalty", sampling.presence_penalty),
        ("logit_bias", sampling.logit_bias),
        ("answers", (sampling.answers or 1) != 1),
        ("logprobs", sampling.logprobs),
        ("top_logprobs", sampling.top_logprobs),
        ("service_tier", request.service_tier is not None),
    ):
        if is_set:
            raise request.refuse(setting)


def _user_id(user: str) -> str:
    """The end user's id, or a hash of one that is longer than the vendor takes: it need only be stable."""
    return user if len(user) <= MAX_USER_CHARS else sha256(user.encode()).hexdigest()


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
    if not all(stop.strip() for stop in sampling.stop):
        raise request.refuse("stop", "the target of this slug takes no stop sequence of white space alone")
    settings = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k")}
    members = {name: value for name, value in settings.items() if value is not None}
    return members | ({"stop_sequences": sampling.stop} if sampling.stop else {})


def _thinking(request: Request, messages: list[Json], model: str) -> Json:
    """The member `thinking`, where it is wanted and the vendor would accept it."""
    settings = request.reasoning
    if settings is None or not (settings.visible if settings.enabled is None else settings.enabled):
        return {}
    budget = settings.budget_tokens
    if budget is None and not has_adaptive_thinking(model):
        budget = budget_of_effort(settings.effort, request.max_output_tokens)
    if request.tool_choice is not None and request.tool_choice.kind in (REQUIRED, NAMED):
        request.reasoning_off = "the tool choice forces a call"
    elif has_open_tool_loop(messages):
        request.reasoning_off = FOREIGN_REASONING
    elif messages and messages[-1]["role"] == ASSISTANT:
        request.reasoning_off = "the caller began the answer"
    elif budget == 0:
        request.reasoning_off = "the cap on output tokens leaves no room"
    if request.reasoning_off:
        return {}
    thinking: Json = {"type": "adaptive"} if budget is None else {"type": "enabled", "budget_tokens": budget}
    if settings.visible is not None and has_adaptive_thinking(model):  # older models always show a summary
        thinking["display"] = "summarized" if settings.visible else "omitted"
    return {"thinking": thinking}


def _refuse_beside_thinking(sampling: Sampling, request: Request) -> None:
    """The vendor samples freely while it thinks."""
    if sampling.temperature not in (None, 1):
        raise request.refuse("temperature", "the target of this slug takes only 1 while it reasons")
    if sampling.top_p is not None and sampling.top_p < MIN_TOP_P_THINKING:
        raise request.refuse("top_p", f"the target of this slug takes {MIN_TOP_P_THINKING} to 1 while it reasons")


def _output_config(request: Request, model: str) -> Json:
    config: Json = {}
    if request.output_format is not None:
        config["format"] = _format(request, request.output_format)
    if has_adaptive_thinking(model) and (effort := _effort(request)) is not None:
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
