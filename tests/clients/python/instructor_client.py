"""instructor: its modes for tools and for schemas, on `chat`, `responses` and `messages`."""

import sys
from collections.abc import Iterable
from typing import Any

import anthropic
import instructor
import openai
from instructor import Mode
from pydantic import BaseModel

from tests.clients.python.harness import PNG, Case, Target, bare, says, serve

DIALECT = sys.argv[1]


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    celsius: int


def client(target: Target, mode: Any, retries: int = 0) -> Any:
    if DIALECT == "messages":
        inner: Any = anthropic.Anthropic(
            base_url=target.base_url, api_key=target.api_key, max_retries=retries, timeout=30
        )
        return instructor.from_anthropic(inner, mode=mode)
    inner = openai.OpenAI(base_url=target.v1, api_key=target.api_key, max_retries=retries, timeout=30)
    wrapped = instructor.from_openai(inner, mode=mode)
    return wrapped.responses if DIALECT == "responses" else wrapped


def ask(target: Target, scenario: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": says(scenario)}]
    if DIALECT == "messages":
        more["max_tokens"] = 300
    member = "input" if DIALECT == "responses" else "messages"
    return {"model": target.model, member: messages, "max_retries": 0, **more}


def create(mode: Any, scenario: str = "structured") -> Case:
    def case(target: Target) -> Any:
        weather, _ = client(target, mode).create_with_completion(response_model=Weather, **ask(target, scenario))
        return bare(weather)

    return case


def partial(mode: Any) -> Case:
    def case(target: Target) -> Any:
        pieces = list(client(target, mode).create_partial(response_model=Weather, **ask(target, "structured")))
        return {"several": len(pieces) > 1, "last": bare(pieces[-1])}

    return case


def several(target: Target) -> Any:
    """Parallel calls of one tool, as a sequence of models."""
    cities = client(target, PARALLEL).create(response_model=Iterable[City], **ask(target, "parallel-tools"))
    return [bare(city) for city in cities]


class City(BaseModel):
    city: str


def image(target: Target) -> Any:
    picture = instructor.Image(media_type="image/png", data=PNG, source="data")
    messages = [{"role": "user", "content": [says("structured"), picture]}]
    request = ask(target, "structured") | {"messages": messages}
    return bare(client(target, TOOLS).create(response_model=Weather, **request))


def retries(target: Target) -> Any:
    request = ask(target, f"rate-limited-once:{target.turn}")
    return client(target, TOOLS, retries=2).create(response_model=None, **request) is not None


TOOLS = {"chat": Mode.TOOLS, "responses": Mode.RESPONSES_TOOLS, "messages": Mode.ANTHROPIC_TOOLS}[DIALECT]
PARALLEL = {"chat": Mode.PARALLEL_TOOLS, "messages": Mode.ANTHROPIC_PARALLEL_TOOLS}.get(DIALECT)
SCHEMA = {"chat": Mode.JSON_SCHEMA}.get(DIALECT)
CASES: dict[str, Case] = {
    "structured, by a tool": create(TOOLS),
    "structured, streamed": partial(TOOLS),
    "error 400": create(TOOLS, "bad-request"),
    "error 429": create(TOOLS, "rate-limited"),
}
if DIALECT != "responses":
    CASES |= {"several models": several, "image": image, "retry after 429": retries}
if SCHEMA is not None:
    CASES |= {"structured, by schema": create(SCHEMA), "structured by schema, streamed": partial(SCHEMA)}

if __name__ == "__main__":
    serve(CASES)
