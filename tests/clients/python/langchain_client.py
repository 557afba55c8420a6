"""LangChain's chat models: `chat`, `responses` (both of langchain-openai) and `messages` (langchain-anthropic)."""

import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.clients.python.harness import DEGREES, DESCRIPTION, PNG, Case, Target, bare, says, serve

DIALECT = sys.argv[1]
REASONS: dict[str, dict[str, Any]] = {
    "chat": {"reasoning_effort": "high"},
    "responses": {
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
    },
    "messages": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
}


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    celsius: int


def weather_of(city: str) -> str:
    return f"{DEGREES} in {city}"


get_weather = tool("get_weather", description=DESCRIPTION)(weather_of)


def model(target: Target, retries: int = 0, **more: Any) -> Any:
    common: dict[str, Any] = {"model": target.model, "api_key": target.api_key, "max_retries": retries, "timeout": 30}
    if DIALECT == "messages":
        return ChatAnthropic(base_url=target.base_url, max_tokens=2048, **common, **more)
    return ChatOpenAI(base_url=target.v1, use_responses_api=DIALECT == "responses", **common, **more)


def ask(scenario: str, *parts: Any) -> list[Any]:
    content = [{"type": "text", "text": says(scenario)}, *parts] if parts else says(scenario)
    return [SystemMessage("Be brief."), HumanMessage(content)]


def told(message: Any) -> Any:
    """Return what an application reads of a message."""
    blocks = [block | {"index": 0} for block in message.content_blocks]
    usage = dict(message.usage_metadata or {})
    return {"blocks": bare(blocks), "calls": bare(message.tool_calls), "usage": bare(usage)}


def invoke(scenario: str, *parts: Any, **more: Any) -> Case:
    return lambda target: told(model(target, **more).invoke(ask(scenario, *parts)))


def stream(scenario: str, **more: Any) -> Case:
    def case(target: Target) -> Any:
        chunks = list(model(target, stream_usage=True, **more).stream(ask(scenario)))
        total = chunks[0]
        for chunk in chunks[1:]:
            total += chunk
        return {"several": len(chunks) > 2, "total": told(total)}

    return case


def tools(scenario: str, **choice: Any) -> Case:
    return lambda target: told(model(target).bind_tools([get_weather], **choice).invoke(ask(scenario)))


def streamed_tools(target: Target) -> Any:
    chunks = list(model(target).bind_tools([get_weather]).stream(ask("parallel-tools")))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return told(total)


def tool_loop(scenario: str, **more: Any) -> Case:
    def case(target: Target) -> Any:
        bound = model(target, **more).bind_tools([get_weather])
        messages = ask(scenario)
        answers = []
        while True:
            message = bound.invoke(messages)
            answers.append(told(message))
            if not message.tool_calls:
                return answers
            results = [
                ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in message.tool_calls
            ]
            messages += [message, *results]

    return case


def structured(method: str) -> Case:
    def case(target: Target) -> Any:
        return bare(model(target).with_structured_output(Weather, method=method).invoke(ask("structured")))

    return case


def retries(target: Target) -> Any:
    return told(model(target, retries=2).invoke(ask(f"rate-limited-once:{target.turn}")))


IMAGE = {"type": "image", "base64": PNG, "mime_type": "image/png"}
CASES = {
    "plain": invoke("plain"),
    "stream": stream("plain"),
    "tools": tools("tools"),
    "named tool": tools("tools", tool_choice="get_weather"),
    "parallel tools": tools("parallel-tools"),
    "parallel tools, streamed": streamed_tools,
    "tool loop": tool_loop("parallel-tools"),
    "structured, by schema": structured("json_schema"),
    "structured, by a tool": structured("function_calling"),
    "reasoning": invoke("thinking", **REASONS[DIALECT]),
    "reasoning, streamed": stream("thinking", **REASONS[DIALECT]),
    "reasoning in a tool loop": tool_loop("thinking-tools", **REASONS[DIALECT]),
    "image": invoke("echo", IMAGE),
    "max tokens": invoke("max-tokens"),
    "error 400": invoke("bad-request"),
    "error 429": invoke("rate-limited"),
    "error overloaded": invoke("overloaded"),
    "retry after 429": retries,
}

if __name__ == "__main__":
    serve(CASES)
