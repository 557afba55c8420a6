"""pydantic-ai's agents: on `chat`, `responses` and `messages`."""

import asyncio
import base64
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.python.harness import DEGREES, PNG, Case, Target, bare, runs, says, serve

DIALECT = sys.argv[1]
REASONS: dict[str, dict[str, Any]] = {
    "chat": {"openai_reasoning_effort": "high"},
    "responses": {
        "openai_reasoning_effort": "high",
        "openai_reasoning_summary": "auto",
        "openai_store": False,
    },
    "messages": {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
}


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    celsius: int


def agent(target: Target, *tools: Any, **more: Any) -> Any:
    if DIALECT == "messages":
        provider = AnthropicProvider(base_url=target.base_url, api_key=target.api_key)
        model: Any = AnthropicModel(target.model, provider=provider)
    else:
        kind = OpenAIChatModel if DIALECT == "chat" else OpenAIResponsesModel
        model = kind(target.model, provider=OpenAIProvider(base_url=target.v1, api_key=target.api_key))
    return Agent(model, instructions="Be brief.", tools=list(tools), retries=0, **more)


def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: The city's name
    """
    return f"{DEGREES} in {city}"


def told(result: Any) -> Any:
    """The output, the parts of every message, and the usage."""
    parts = [bare(part_of(part)) for message in result.all_messages() for part in message.parts]
    usage = result.usage() if callable(result.usage) else result.usage
    spent = [usage.input_tokens, usage.cache_read_tokens, usage.output_tokens, usage.requests, usage.tool_calls]
    return {"output": bare(result.output), "parts": parts, "usage": spent}


def part_of(part: Any) -> Any:
    names = ("part_kind", "content", "tool_name", "args")
    return {name: getattr(part, name) for name in names if isinstance(getattr(part, name, None), str | dict)}


def run(scenario: str, *tools: Any, **more: Any) -> Case:
    return lambda target: told(agent(target, *tools, **more).run_sync(says(scenario)))


def stream(scenario: str, *tools: Any, **more: Any) -> Case:
    async def events(target: Target) -> Any:
        kinds = []
        results = []
        async with agent(target, *tools, **more).run_stream_events(says(scenario)) as gathered:
            async for event in gathered:
                kinds.append(getattr(event, "event_kind", type(event).__name__))
                if hasattr(event, "result") and hasattr(event.result, "all_messages"):
                    results.append(event.result)
        return {"kinds": runs(kinds), "final": told(results[-1])}

    return lambda target: asyncio.run(events(target))


def image(target: Target) -> Any:
    content = [says("echo"), BinaryContent(base64.b64decode(PNG), media_type="image/png")]
    return told(agent(target).run_sync(content))["output"]


CASES = {
    "plain": run("plain"),
    "stream": stream("plain"),
    "tool loop": run("tools", get_weather),
    "tool loop, parallel": run("parallel-tools", get_weather),
    "tool loop, streamed": stream("parallel-tools", get_weather),
    "structured, by a tool": run("structured", output_type=ToolOutput(Weather)),
    "structured, streamed": stream("structured", output_type=ToolOutput(Weather)),
    "reasoning": run("thinking", model_settings=REASONS[DIALECT]),
    "reasoning, streamed": stream("thinking", model_settings=REASONS[DIALECT]),
    "reasoning in a tool loop": run("thinking-tools", get_weather, model_settings=REASONS[DIALECT]),
    "image": image,
    "error 400": run("bad-request"),
    "error 500": run("server-error"),
    "retry after 429": lambda target: agent(target).run_sync(says(f"rate-limited-once:{target.turn}")).output,
}

if DIALECT != "messages":  # pydantic-ai asks only models that it knows by name for a schema there
    CASES["structured, by schema"] = run("structured", output_type=NativeOutput(Weather))

if __name__ == "__main__":
    serve(CASES)
