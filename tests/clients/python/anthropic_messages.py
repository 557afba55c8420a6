"""The anthropic package on Messages."""

from typing import Any

import anthropic
from pydantic import BaseModel

from tests.clients.python.harness import DEGREES, DESCRIPTION, PNG, SCHEMA, STOP, Target, bare, runs, says, serve

TOOLS: list[Any] = [{"name": "get_weather", "description": DESCRIPTION, "input_schema": SCHEMA, "strict": True}]
CACHED = {"cache_control": {"type": "ephemeral"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
DOCUMENT = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}}
THINKING = {"type": "enabled", "budget_tokens": 1024}


class Weather(BaseModel):
    city: str
    celsius: int


def client(target: Target, retries: int = 0) -> Any:
    return anthropic.Anthropic(base_url=target.base_url, api_key=target.api_key, max_retries=retries, timeout=30)


def ask(scenario: str, target: Target, *blocks: Any, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": says(scenario)}, *blocks]
    messages = [{"role": "user", "content": content}]
    return {"model": target.model, "max_tokens": 2048, "system": "Be brief.", "messages": messages, **more}


def create(scenario: str, *blocks: Any, **more: Any) -> Any:
    return lambda target: bare(client(target).messages.create(**ask(scenario, target, *blocks, **more)))


def stream(scenario: str, **more: Any) -> Any:
    """The kinds of the raw events, and the message that the SDK gathers."""

    def case(target: Target) -> Any:
        request = ask(scenario, target, **more)
        events = list(client(target).messages.create(**request, stream=True))
        with client(target).messages.stream(**request) as gathered:
            return {"kinds": runs(map(kind_of, events)), "final": bare(gathered.get_final_message())}

    return case


def kind_of(event: Any) -> str:
    match event.type:
        case "content_block_start":
            return f"start {event.index} {event.content_block.type}"
        case "content_block_delta":
            return f"delta {event.index} {event.delta.type}"
        case "message_delta":
            return f"message_delta {event.delta.stop_reason}"
    return str(event.type)


def tool_loop(scenario: str, *content: Any, **more: Any) -> Any:
    """Call the tools that the answer asks for until it asks for none. Thinking goes back as it came."""

    def case(target: Target) -> Any:
        request = ask(scenario, target, tools=TOOLS, **more)
        result_content = [{"type": "text", "text": DEGREES}, *content]
        answers = []
        while True:
            message = client(target).messages.create(**request)
            answers.append(bare(message))
            uses = [block for block in message.content if block.type == "tool_use"]
            if not uses:
                return answers
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": result_content} for use in uses]
            request["messages"].append({"role": "assistant", "content": message.content})
            request["messages"].append({"role": "user", "content": results})

    return case


def failed_tool(target: Target) -> Any:
    """A tool's result that is an error."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no such city", "is_error": True}
    request = ask("echo", target, tools=TOOLS)
    request["messages"] += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return bare(client(target).messages.create(**request))


def structured(target: Target) -> Any:
    return bare(client(target).messages.parse(**ask("structured", target, output_format=Weather)))


def retries(scenario: str) -> Any:
    return lambda target: bare(client(target, retries=2).messages.create(**ask(f"{scenario}:{target.turn}", target)))


def models(target: Target) -> Any:
    return [sorted(bare(model)) for model in client(target).models.list().data]


def count_tokens(target: Target) -> Any:
    request = ask("plain", target)
    counted = client(target).messages.count_tokens(model=target.model, messages=request["messages"])
    return {"counted": counted.input_tokens > 0}


EVERYTHING = {
    "max_tokens": 300,
    "tools": TOOLS,
    "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
    "extra_body": {"temperature": 0.5, "top_p": 0.75},
}

CASES = {
    "plain": create("plain"),
    "stream": stream("plain"),
    "tools": create("tools", tools=TOOLS),
    "tools, streamed": stream("text-and-tool", tools=TOOLS),
    "parallel tools": create("parallel-tools", tools=TOOLS, tool_choice={"type": "any"}),
    "parallel tools, streamed": stream("parallel-tools", tools=TOOLS),
    "tool loop": tool_loop("parallel-tools"),
    "tool results with an image": tool_loop("tools", IMAGE),
    "failed tool": failed_tool,
    "structured": structured,
    "reasoning": create("thinking", thinking=THINKING),
    "reasoning, streamed": stream("thinking", thinking=THINKING),
    "reasoning in a tool loop": tool_loop("thinking-tools", thinking=THINKING),
    "adaptive reasoning": create("thinking", thinking={"type": "adaptive"}, output_config={"effort": "high"}),
    "redacted reasoning": create("redacted-thinking", thinking=THINKING),
    "image": create("echo", IMAGE),
    "document": create("echo", DOCUMENT),
    "cache control": create("echo", {"type": "text", "text": "long"} | CACHED, cache_control={"type": "ephemeral"}),
    "everything": create("echo", **EVERYTHING),
    "stop sequence": create("stop-sequence", stop_sequences=[STOP]),
    "max tokens": create("max-tokens", max_tokens=20),
    "refusal": create("refusal"),
    "refusal, streamed": stream("refusal"),
    "error 400": create("bad-request"),
    "error 404": create("unknown-model"),
    "error 429": create("rate-limited"),
    "error 500": create("server-error"),
    "error overloaded": create("overloaded"),
    "stream breaks": stream("cut"),
    "retry after 429": retries("rate-limited-once"),
    "retry after 500": retries("server-error-once"),
    "models": models,
    "count tokens": count_tokens,
}

if __name__ == "__main__":
    serve(CASES)
