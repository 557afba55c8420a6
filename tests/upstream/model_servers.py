"""Model servers as they document themselves: the dialects that they speak, and how they answer a path that they lack.

Older releases of each lack dialects that the newest has. docs/compatibility.md shows this table, and
`tests/contracts/http/test_model_servers.py` calls a server of each row.
"""

import json
from dataclasses import dataclass
from typing import Any

from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.behaviours import answer, answer_json
from tests.upstream.exchange import Behaviour, Exchange
from tests.upstream.oddities.row import chat_text, chat_usage, frames, message_text, response_text, sends

ALL = (CHAT_COMPLETIONS, MESSAGES, RESPONSES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    """One server. In texts `{path}` is the path that was asked."""

    name: str
    speaks: tuple[str, ...] = ALL
    """The dialects of its newest release."""
    missing_path: tuple[int, str]
    """Status and body on a path that it lacks."""
    missing_model: tuple[int, Any]
    """Status and body for a model that it does not serve."""

    def speaking(self, dialects: tuple[str, ...], behaviour: Behaviour | None = None) -> Behaviour:
        """A release that speaks these dialects. `behaviour`: its answer on their paths, in place of a text."""

        async def behave(exchange: Exchange) -> None:
            path = exchange.received.path
            target_dialect = next((name for name in dialects if path.endswith(SUFFIXES[name])), None)
            if target_dialect is not None:
                await (behaviour or ANSWERS[target_dialect])(exchange)
                return
            status, body = self.missing_path
            label = "application/json" if body.startswith("{") else "text/plain"
            await answer(status, body.replace("{path}", path).encode(), {"content-type": label})(exchange)

        return behave

    def refuses_model(self) -> Behaviour:
        return answer_json(*self.missing_model)


SUFFIXES = {CHAT_COMPLETIONS: "/chat/completions", MESSAGES: "/messages", RESPONSES: "/responses"}
ANSWERS = {
    CHAT_COMPLETIONS: sends(frames(*chat_text("Hello"), chat_usage(), "[DONE]")),
    MESSAGES: sends(frames(*message_text("Hello"))),
    RESPONSES: sends(frames(*response_text("Hello"))),
}

MODEL_SERVERS = (
    ModelServer(
        name="vLLM",
        missing_path=(
            404,
            json.dumps({"error": {"message": "Not Found", "type": "Not Found", "param": None, "code": 404}}),
        ),
        missing_model=(
            404,
            {
                "error": {
                    "message": "The model `their-model` does not exist.",
                    "type": "NotFoundError",
                    "param": "model",
                    "code": 404,
                }
            },
        ),
    ),
    ModelServer(
        name="vLLM, older releases",
        speaks=(CHAT_COMPLETIONS,),
        missing_path=(404, json.dumps({"detail": "Not Found"})),
        missing_model=(
            404,
            {
                "object": "error",
                "message": "The model `their-model` does not exist.",
                "type": "NotFoundError",
                "param": None,
                "code": 404,
            },
        ),
    ),
    ModelServer(
        name="SGLang",
        missing_path=(404, json.dumps({"detail": "Not Found"})),
        missing_model=(
            404,
            {
                "error": {
                    "message": "The model 'their-model' does not exist",
                    "type": "invalid_request_error",
                    "param": "model",
                    "code": "model_not_found",
                }
            },
        ),
    ),
    ModelServer(
        name="llama.cpp",
        missing_path=(
            404,
            json.dumps({"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}),
        ),
        missing_model=(404, {"error": {"code": 404, "message": "model not found", "type": "not_found_error"}}),
    ),
    ModelServer(
        name="Ollama",
        missing_path=(404, "404 page not found"),
        missing_model=(
            404,
            {
                "error": {
                    "message": "model 'their-model' not found",
                    "type": "not_found_error",
                    "param": None,
                    "code": None,
                }
            },
        ),
    ),
    ModelServer(
        name="LM Studio",
        missing_path=(200, json.dumps({"error": "Unexpected endpoint or method. (POST {path})"})),
        missing_model=(
            400,
            {
                "error": {
                    "message": 'Invalid model identifier "their-model". Please specify a valid downloaded model',
                    "type": "invalid_request_error",
                    "param": "model",
                    "code": "model_not_found",
                }
            },
        ),
    ),
    ModelServer(
        name="LiteLLM",
        missing_path=(404, json.dumps({"detail": "Not Found"})),
        missing_model=(
            400,
            {
                "error": {
                    "message": "/chat/completions: Invalid model name passed in model=their-model. "
                    "Call `/v1/models` to view available models for your key.",
                    "type": "None",
                    "param": "None",
                    "code": "400",
                }
            },
        ),
    ),
    ModelServer(
        name="Groq",
        speaks=(CHAT_COMPLETIONS, RESPONSES),
        missing_path=(
            404,
            json.dumps(
                {
                    "error": {
                        "message": "Unknown request URL: POST {path}. Please check the URL for typos",
                        "type": "invalid_request_error",
                        "code": "unknown_url",
                    }
                }
            ),
        ),
        missing_model=(
            404,
            {
                "error": {
                    "message": "The model `their-model` does not exist or you do not have access to it.",
                    "type": "invalid_request_error",
                    "code": "model_not_found",
                }
            },
        ),
    ),
)
