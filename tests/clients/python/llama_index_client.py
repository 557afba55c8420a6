"""LlamaIndex: its OpenAI-like model on `chat`, its Anthropic model on `messages`."""

import base64
import json
import sys
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ImageBlock, LLMMetadata, MessageRole, TextBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from tests.clients.python.harness import DEGREES, DESCRIPTION, PNG, Case, Target, bare, says, serve

DIALECT = sys.argv[1]
THINKING = {"type": "enabled", "budget_tokens": 1024}


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    celsius: int


def get_weather(city: str) -> str:
    return f"{DEGREES} in {city}"


TOOL = FunctionTool.from_defaults(get_weather, name="get_weather", description=DESCRIPTION)


class AnthropicOfAnyName(Anthropic):  # type: ignore[misc]
    """LlamaIndex refuses names that it does not know, so slugs need this."""

    @property
    def metadata(self) -> Any:
        return LLMMetadata(context_window=200_000, num_output=2048, is_chat_model=True, is_function_calling_model=True)


def model(target: Target, retries: int = 0, **more: Any) -> Any:
    common: dict[str, Any] = {"model": target.model, "api_key": target.api_key, "timeout": 30, "max_retries": retries}
    if DIALECT == "messages":
        return AnthropicOfAnyName(base_url=target.base_url, max_tokens=2048, **common, **more)
    flags = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True}
    return OpenAILike(api_base=target.v1, **flags, **common, **more)


def ask(scenario: str, *blocks: Any) -> list[Any]:
    user = ChatMessage(role=MessageRole.USER, blocks=[TextBlock(text=says(scenario)), *blocks])
    return [ChatMessage(role=MessageRole.SYSTEM, content="Be brief."), user]


def told(response: Any) -> Any:
    blocks = [bare(block) for block in response.message.blocks]
    return {"role": response.message.role.value, "blocks": blocks}


def chat(scenario: str, *blocks: Any, **more: Any) -> Case:
    return lambda target: told(model(target, **more).chat(ask(scenario, *blocks)))


def stream(target: Target) -> Any:
    pieces = list(model(target).stream_chat(ask("plain")))
    return {"several": len(pieces) > 2, "text": "".join(piece.delta or "" for piece in pieces)}


def tool_loop(scenario: str) -> Case:
    def case(target: Target) -> Any:
        llm = model(target)
        messages = ask(scenario)
        answers = []
        while True:
            response = llm.chat_with_tools([TOOL], chat_history=messages, allow_parallel_tool_calls=True)
            calls = llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
            answers.append({"calls": [[call.tool_name, call.tool_kwargs] for call in calls], **told(response)})
            if not calls:
                return answers
            messages.append(response.message)
            for call in calls:
                extra = {"tool_call_id": call.tool_id, "name": call.tool_name}
                result = json.dumps(get_weather(**call.tool_kwargs))
                messages.append(ChatMessage(role=MessageRole.TOOL, content=result, additional_kwargs=extra))

    return case


def structured(target: Target) -> Any:
    return bare(model(target).as_structured_llm(Weather).chat(ask("structured")).raw)


def image(target: Target) -> Any:
    block = ImageBlock(image=base64.b64decode(PNG), image_mimetype="image/png")
    return told(model(target).chat(ask("echo", block)))


REASONS: dict[str, Any] = (
    {"thinking_dict": THINKING, "temperature": 1.0}
    if DIALECT == "messages"
    else {"additional_kwargs": {"reasoning_effort": "high"}}
)
CASES = {
    "plain": chat("plain"),
    "stream": stream,
    "tool loop": tool_loop("tools"),
    "tool loop, parallel": tool_loop("parallel-tools"),
    "structured": structured,
    "reasoning": chat("thinking", **REASONS),
    "image": image,
    "error 400": chat("bad-request"),
    "error 429": chat("rate-limited"),
}

if DIALECT == "messages":  # its requests are refused by Messages vendors: `tool_choice` is a text
    del CASES["structured"]

if __name__ == "__main__":
    serve(CASES)
