"""The openai package on Responses."""

from typing import Any

import openai
from pydantic import BaseModel

from tests.clients.python.harness import DEGREES, DESCRIPTION, PNG, SCHEMA, Target, bare, runs, says, serve

TOOLS: list[Any] = [
    {"type": "function", "name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA, "strict": True}
]
REASONS: dict[str, Any] = {
    "reasoning": {"effort": "high", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "store": False,
}


class Weather(BaseModel):
    city: str
    celsius: int


def client(target: Target, retries: int = 0) -> Any:
    return openai.OpenAI(base_url=target.v1, api_key=target.api_key, max_retries=retries, timeout=30)


def ask(scenario: str, target: Target, *parts: Any, **more: Any) -> dict[str, Any]:
    items = [{"role": "user", "content": [{"type": "input_text", "text": says(scenario)}, *parts]}]
    return {"model": target.model, "instructions": "Be brief.", "input": items, **more}


def create(scenario: str, *parts: Any, **more: Any) -> Any:
    return lambda target: bare(client(target).responses.create(**ask(scenario, target, *parts, **more)))


def stream(scenario: str, **more: Any) -> Any:
    """The kinds of the events, and the response that ends them."""

    def case(target: Target) -> Any:
        events = list(client(target).responses.create(**ask(scenario, target, **more), stream=True))
        numbers = [event.sequence_number for event in events]
        finals = [event.response for event in events if hasattr(event, "response")]
        kinds = runs(map(kind_of, events))
        return {"kinds": kinds, "numbered": numbers == list(range(len(events))), "final": bare(finals[-1])}

    return case


def kind_of(event: Any) -> str:
    return f"{event.type} {getattr(event, 'output_index', '')}".strip()


def tool_loop(scenario: str, **more: Any) -> Any:
    """Call the tools that the answer asks for until it asks for none. All output items go back as they came."""

    def case(target: Target) -> Any:
        request = ask(scenario, target, tools=TOOLS, **more)
        answers = []
        while True:
            response = client(target).responses.create(**request)
            answers.append(bare(response.output))
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return answers
            request["input"] += [item.model_dump(exclude_none=True) for item in response.output]
            request["input"] += [
                {"type": "function_call_output", "call_id": call.call_id, "output": DEGREES} for call in calls
            ]

    return case


def structured(target: Target) -> Any:
    response = client(target).responses.parse(**ask("structured", target, text_format=Weather))
    return {"parsed": bare(response.output_parsed), "output": bare(response.output)}


def structured_stream(target: Target) -> Any:
    with client(target).responses.stream(**ask("structured", target, text_format=Weather)) as events:
        kinds = runs(map(kind_of, events))
        return {"kinds": kinds, "parsed": bare(events.get_final_response().output_parsed)}


def retries(scenario: str) -> Any:
    return lambda target: bare(client(target, retries=2).responses.create(**ask(f"{scenario}:{target.turn}", target)))


def refused(**more: Any) -> Any:
    return create("plain", **more)


IMAGE = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"}
DOCUMENT = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjQK"}
EVERYTHING = {
    "temperature": 0.5,
    "top_p": 0.75,
    "max_output_tokens": 300,
    "tools": TOOLS,
    "tool_choice": {"type": "function", "name": "get_weather"},
    "parallel_tool_calls": False,
}

CASES = {
    "plain": create("plain"),
    "stream": stream("plain"),
    "tools": create("tools", tools=TOOLS),
    "tools, streamed": stream("text-and-tool", tools=TOOLS),
    "parallel tools": create("parallel-tools", tools=TOOLS, tool_choice="required"),
    "parallel tools, streamed": stream("parallel-tools", tools=TOOLS),
    "tool loop": tool_loop("parallel-tools"),
    "structured": structured,
    "structured, streamed": structured_stream,
    "reasoning": create("thinking", **REASONS),
    "reasoning, streamed": stream("thinking", **REASONS),
    "reasoning in a tool loop": tool_loop("thinking-tools", **REASONS),
    "image": create("echo", IMAGE),
    "document": create("echo", DOCUMENT),
    "everything": create("echo", **EVERYTHING),
    "max tokens": create("max-tokens", max_output_tokens=20),
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
}

if __name__ == "__main__":
    serve(CASES)
