"""openai-agents: its runner on `chat` and `responses`."""

import asyncio
import json
import sys
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel

from tests.clients.python.harness import DEGREES, PNG, Case, Target, bare, runs, says, serve

DIALECT = sys.argv[1]
REASONS = ModelSettings(
    reasoning=Reasoning(effort="high", summary="auto" if DIALECT == "responses" else None),
    store=False if DIALECT == "responses" else None,
    response_include=["reasoning.encrypted_content"] if DIALECT == "responses" else None,
)
set_tracing_disabled(True)


class Weather(BaseModel):
    city: str
    celsius: int


def weather_of(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: The city's name
    """
    return f"{DEGREES} in {city}"


get_weather = function_tool(weather_of, name_override="get_weather")


def agent(target: Target, *tools: Any, retries: int = 0, **more: Any) -> Any:
    client = AsyncOpenAI(base_url=target.v1, api_key=target.api_key, max_retries=retries, timeout=30)
    kind: Any = OpenAIChatCompletionsModel if DIALECT == "chat" else OpenAIResponsesModel
    model = kind(model=target.model, openai_client=client)
    return Agent(name="forecaster", instructions="Be brief.", model=model, tools=list(tools), **more)


def told(result: Any) -> Any:
    """The output, the kinds of the items, and the usage."""
    usage = result.context_wrapper.usage
    cached = usage.input_tokens_details.cached_tokens
    spent = [usage.requests, usage.input_tokens, cached, usage.output_tokens]
    items = [[item.type, bare(item.raw_item)] for item in result.new_items]
    return {"output": bare(result.final_output), "items": json.loads(json.dumps(items, default=str)), "usage": spent}


def run(scenario: str, *tools: Any, **more: Any) -> Case:
    return lambda target: told(asyncio.run(Runner.run(agent(target, *tools, **more), says(scenario))))


def stream(scenario: str, *tools: Any, **more: Any) -> Case:
    async def case(target: Target) -> Any:
        result = Runner.run_streamed(agent(target, *tools, **more), says(scenario))
        kinds = [kind_of(event) async for event in result.stream_events()]
        return {"kinds": runs(kinds), "final": told(result)}

    return lambda target: asyncio.run(case(target))


def kind_of(event: Any) -> str:
    return f"{event.type} {getattr(event, 'name', '') or getattr(getattr(event, 'data', None), 'type', '')}"


def image(target: Target) -> Any:
    parts = [
        {"type": "input_text", "text": says("echo")},
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"},
    ]
    return told(asyncio.run(Runner.run(agent(target), [{"role": "user", "content": parts}])))["output"]


def retries(target: Target) -> Any:
    return told(asyncio.run(Runner.run(agent(target, retries=2), says(f"rate-limited-once:{target.turn}"))))


CASES = {
    "plain": run("plain"),
    "stream": stream("plain"),
    "tool loop": run("tools", get_weather),
    "tool loop, parallel": run("parallel-tools", get_weather),
    "tool loop, streamed": stream("parallel-tools", get_weather),
    "structured": run("structured", output_type=Weather),
    "structured, streamed": stream("structured", output_type=Weather),
    "reasoning": run("thinking", model_settings=REASONS),
    "reasoning, streamed": stream("thinking", model_settings=REASONS),
    "reasoning in a tool loop": run("thinking-tools", get_weather, model_settings=REASONS),
    "image": image,
    "error 400": run("bad-request"),
    "error 429": run("rate-limited"),
    "retry after 429": retries,
}

if __name__ == "__main__":
    serve(CASES)
