"""Writes the model in the middle as a Chat Completions request for a target.

Pure. Refuses what Chat Completions cannot say, naming the caller's member. Drops `cache_control`, a hint about cost.
"""

from hashlib import sha256

from policy.endpoints import VENDOR_B
from proxy.dialects.chat_completions.tool_writer import written_tool, written_tool_choice
from proxy.dialects.chat_completions.turn_writer import TurnWriter
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.request import AUTO, JSON_SCHEMA, NONE, OutputFormat, ReasoningSettings, Request, Sampling

"""The vendor whose API this dialect is: it alone is sent members that servers of other vendors may not know."""
MAX_USER_CHARS = 64
_LOW_BUDGET = 4096
_MEDIUM_BUDGET = 16384
_SETTINGS = ("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "top_logprobs")


def write_request(request: Request, model: str, provider: str) -> Json:
    """The body for a target of `provider`. Raises `UntranslatableError`."""
    is_native = provider == VENDOR_B
    body: Json = {"model": model, "messages": TurnWriter(is_native=is_native).write(request.turns)}
    if request.max_output_tokens is not None:
        body["max_completion_tokens" if is_native else "max_tokens"] = request.max_output_tokens
    body |= _sampling(request, request.sampling)
    if request.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.tools:
        body["tools"] = [written_tool(tool, is_native=is_native) for tool in request.tools]
    # The vendor refuses a choice without tools; of these, `auto` and `none` ask for nothing.
    if request.tool_choice is not None and (request.tools or request.tool_choice.kind not in (AUTO, NONE)):
        body["tool_choice"] = written_tool_choice(request.tool_choice, request.tools, is_native=is_native)
    if request.parallel_tool_calls is not None and request.tools:
        body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.output_format is not None:
        body["response_format"] = _response_format(request.output_format)
    if request.reasoning is not None and (effort := _effort(request, request.reasoning)):
        body["reasoning_effort"] = effort
    return body | _labels(request, is_native=is_native)


def _sampling(request: Request, sampling: Sampling) -> Json:
    if sampling.top_k is not None:
        raise request.refuse("top_k")
    members = {name: value for name in _SETTINGS if (value := getattr(sampling, name)) is not None}
    if sampling.stop:
        members["stop"] = sampling.stop
    if sampling.answers is not None:
        members["n"] = sampling.answers
    if sampling.logprobs:
        members["logprobs"] = True
    return members


def _response_format(form: OutputFormat) -> Json:
    if form.kind != JSON_SCHEMA:
        return {"type": form.kind}
    schema: Json = {"name": form.name or "output"}
    for name, value in (("description", form.description), ("schema", form.schema), ("strict", form.strict)):
        if value is not None:
            schema[name] = value
    return {"type": JSON_SCHEMA, "json_schema": schema}


def _effort(request: Request, reasoning: ReasoningSettings) -> str | None:
    """The effort to ask for; None to leave it to the model.

    Not every model takes `none` and `max`: they go only to who said so in OpenAI's words.
    """
    is_openais = request.field_of("reasoning").startswith("reasoning")
    if reasoning.enabled is False:
        return "none" if is_openais else None
    if reasoning.effort == "max" and not is_openais:
        return "xhigh"
    if reasoning.effort is not None or reasoning.budget_tokens is None:
        return reasoning.effort
    if reasoning.budget_tokens < _LOW_BUDGET:
        return "low"
    return "medium" if reasoning.budget_tokens < _MEDIUM_BUDGET else "high"


def _labels(request: Request, *, is_native: bool) -> Json:
    """Return the members that are about the call and not about its answer."""
    members: Json = {}
    if request.verbosity is not None:
        members["verbosity"] = request.verbosity
    if request.service_tier is not None:
        members["service_tier"] = request.service_tier
    if request.cache_key is not None and is_native:
        members["prompt_cache_key"] = request.cache_key
    if request.user is not None:
        is_old = not is_native or request.field_of("user") == "user"
        members["user" if is_old else "safety_identifier"] = _user_id(request.user)
    return members


def _user_id(user: str) -> str:
    """The end user's id, or a hash of one that is longer than the vendor takes: it need only be stable."""
    return user if len(user) <= MAX_USER_CHARS else sha256(user.encode()).hexdigest()
