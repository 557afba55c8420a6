"""The openai package on Chat Completions."""

import json
from typing import Any

import openai
from pydantic import BaseModel

from tests.clients.python.harness import DEGREES, DESCRIPTION, PNG, SCHEMA, STOP, Target, bare, runs, says, serve

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA, "strict": True},
    }
]


class Weather(BaseModel):
    city: str
    celsius: int


def client(target: Target, retries: int = 0) -> Any:
    return openai.OpenAI(base_url=target.v1, api_key=target.api_key, max_retries=retries, timeout=30)


def ask(scenario: str, target: Target, system: str = "Be brief.", **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": says(scenario)}]
    return {"model": target.model, "messages": messages, **more}


def create(scenario: str, *system: str, **more: Any) -> Any:
    return lambda target: bare(client(target).chat.completions.create(**ask(scenario, target, *system, **more)))


def stream(scenario: str, **more: Any) -> Any:
    """The kinds of the chunks, what they add up to, and the usage."""

    def case(target: Target) -> Any:
        usage = {"include_usage": True}
        request = ask(scenario, target, stream=True, stream_options=usage, **more)
        chunks = list(client(target).chat.completions.create(**request))
        return {"kinds": runs(kind for chunk in chunks for kind in kinds_of(chunk)), **gathered(chunks)}

    return case


def kinds_of(chunk: Any) -> list[str]:
    kinds = []
    for choice in chunk.choices:
        delta = bare(choice.delta)
        kinds += [name for name in delta if name not in ("role", "tool_calls")]
        kinds += [f"call {call.get('index', 0)}" for call in delta.get("tool_calls", ())]
        kinds += [f"finish {choice.finish_reason}"] if choice.finish_reason else []
    return kinds + (["usage"] if chunk.usage else [])


def gathered(chunks: list[Any]) -> Any:
    texts: dict[str, str] = {}
    calls: dict[int, list[str]] = {}
    for delta in (choice.delta for chunk in chunks for choice in chunk.choices):
        for name, value in bare(delta).items():
            if isinstance(value, str) and name != "role":
                texts[name] = texts.get(name, "") + value
        for call in delta.tool_calls or ():
            parts = calls.setdefault(call.index, ["", ""])
            parts[0] += call.function.name or ""
            parts[1] += call.function.arguments or ""
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    models = sorted({chunk.model for chunk in chunks})
    return {"texts": texts, "calls": bare(calls), "usage": bare(usages), "models": models}


def tool_loop(scenario: str, content: Any = DEGREES, **more: Any) -> Any:
    """Call the tools that the answer asks for until it asks for none."""

    def case(target: Target) -> Any:
        request = ask(scenario, target, tools=TOOLS, **more)
        answers = []
        while True:
            message = client(target).chat.completions.create(**request).choices[0].message
            answers.append(bare(message))
            if not message.tool_calls:
                return answers
            request["messages"].append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                json.loads(call.function.arguments)
                request["messages"].append({"role": "tool", "tool_call_id": call.id, "content": content})

    return case


def structured(target: Target) -> Any:
    return bare(client(target).chat.completions.parse(**ask("structured", target, response_format=Weather)))


def structured_stream(target: Target) -> Any:
    with client(target).chat.completions.stream(**ask("structured", target, response_format=Weather)) as events:
        kinds = runs(event.type for event in events if event.type != "chunk")
        return {"kinds": kinds, "final": bare(events.get_final_completion())}


def image(target: Target) -> Any:
    parts = [
        {"type": "text", "text": says("echo")},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ]
    request = {"model": target.model, "messages": [{"role": "user", "content": parts}]}
    return bare(client(target).chat.completions.create(**request))


def document(target: Target) -> Any:
    parts = [
        {"type": "text", "text": says("echo")},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjQK"}},
    ]
    request = {"model": target.model, "messages": [{"role": "user", "content": parts}]}
    return bare(client(target).chat.completions.create(**request))


def retries(scenario: str) -> Any:
    def case(target: Target) -> Any:
        request = ask(f"{scenario}:{target.turn}", target)
        return bare(client(target, retries=2).chat.completions.create(**request))

    return case


def models(target: Target) -> Any:
    listed = client(target).models.list()
    return {"object": listed.object, "fields": [sorted(bare(model)) for model in listed.data]}


EVERYTHING = {
    "temperature": 0.5,
    "top_p": 0.75,
    "max_completion_tokens": 300,
    "tools": TOOLS,
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
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
    "JSON mode": create("structured", "Answer in JSON.", response_format={"type": "json_object"}),
    "reasoning": create("thinking", reasoning_effort="high"),
    "reasoning, streamed": stream("thinking", reasoning_effort="low"),
    "reasoning in a tool loop": tool_loop("thinking-tools", reasoning_effort="medium"),
    "image": image,
    "document": document,
    "everything": create("echo", **EVERYTHING),
    "stop sequence": create("stop-sequence", stop=[STOP]),
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
}

if __name__ == "__main__":
    serve(CASES)
