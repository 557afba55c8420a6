"""litellm as a client: `chat` and `responses` through its openai provider, `messages` through its anthropic one."""

import json
import sys
from typing import Any

import litellm
from pydantic import BaseModel

from tests.clients.python.harness import DEGREES, DESCRIPTION, PNG, SCHEMA, Case, Target, bare, says, serve

DIALECT = sys.argv[1]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA}}
]
litellm.suppress_debug_info = True


class Weather(BaseModel):
    city: str
    celsius: int


def ask(target: Target, scenario: str, *parts: Any, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": says(scenario)}, *parts] if parts else says(scenario)
    provider = "anthropic" if DIALECT == "messages" else "openai"
    return {
        "model": f"{provider}/{target.model}",
        "api_base": target.base_url if DIALECT == "messages" else target.v1,
        "api_key": target.api_key,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
        "max_retries": 0,
        "timeout": 30,
        **more,
    }


def told(answer: Any) -> Any:
    choice = answer.choices[0]
    message = bare(choice.message)
    message.pop("provider_specific_fields", None)
    return {"message": message, "finish": choice.finish_reason, "usage": spent(answer.usage)}


def spent(usage: Any) -> Any:
    details = usage.prompt_tokens_details
    return [usage.prompt_tokens, usage.completion_tokens, details.cached_tokens if details else None]


def create(scenario: str, *parts: Any, **more: Any) -> Case:
    return lambda target: told(litellm.completion(**ask(target, scenario, *parts, **more)))


def stream(scenario: str, **more: Any) -> Case:
    def case(target: Target) -> Any:
        request = ask(target, scenario, stream=True, stream_options={"include_usage": True}, **more)
        chunks = list(litellm.completion(**request))
        return told(litellm.stream_chunk_builder(chunks))

    return case


def tool_loop(scenario: str, **more: Any) -> Case:
    def case(target: Target) -> Any:
        request = ask(target, scenario, tools=TOOLS, **more)
        answers = []
        while True:
            answer = litellm.completion(**request)
            answers.append(told(answer))
            message = answer.choices[0].message
            if not message.tool_calls:
                return answers
            own = {"provider_specific_fields"}
            request["messages"].append(message.model_dump(exclude_none=True, exclude=own))
            for call in message.tool_calls:
                json.loads(call.function.arguments)
                request["messages"].append({"role": "tool", "tool_call_id": call.id, "content": DEGREES})

    return case


def respond(scenario: str, **more: Any) -> Case:
    def case(target: Target) -> Any:
        request = ask(target, scenario, **more)
        request["input"] = request.pop("messages")[1:]
        answer = litellm.responses(**request)
        return {"output": bare(list(answer.output)), "status": answer.status}

    return case


IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
REASONS: dict[str, Any] = (
    {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 2048,
        "allowed_openai_params": ["thinking"],
    }
    if DIALECT == "messages"
    else {"reasoning_effort": "high", "allowed_openai_params": ["reasoning_effort"]}
)
CHAT_CASES = {
    "plain": create("plain"),
    "stream": stream("plain"),
    "tools": create("tools", tools=TOOLS),
    "parallel tools, streamed": stream("parallel-tools", tools=TOOLS),
    "tool loop": tool_loop("parallel-tools"),
    "structured": create("structured", response_format=Weather),
    "reasoning": create("thinking", **REASONS),
    "reasoning, streamed": stream("thinking", **REASONS),
    "image": create("echo", IMAGE),
    "error 400": create("bad-request"),
    "error 429": create("rate-limited"),
    "error overloaded": create("overloaded"),
}
RESPONSES_CASES = {
    "plain": respond("plain"),
    "tools": respond("tools", tools=[{"type": "function", **TOOLS[0]["function"]}]),
    "error 429": respond("rate-limited"),
}

if __name__ == "__main__":
    serve(RESPONSES_CASES if DIALECT == "responses" else CHAT_CASES)
