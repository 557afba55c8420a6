"""Words for why an answer ended that one vendor or model server alone uses, in streams and in whole answers."""

from collections.abc import Iterator

from policy.billing import Tokens
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.behaviours import answer_json
from tests.upstream.exchange import Behaviour
from tests.upstream.oddities.failures import ENDINGS
from tests.upstream.oddities.row import TARGET_MODEL, Json, Oddity, Seen, chat_text, chat_usage, frames, sends

REPORTED = Tokens(input=12, output=5)
BROKEN = ("abort", "error", "insufficient_system_resource", "MALFORMED_FUNCTION_CALL", "network_error")
"""The server gave up: vLLM, OpenRouter and Mistral, DeepSeek, Gemini, Zhipu."""
MEANINGS: dict[str, tuple[bytes, bytes]] = {
    "model_length": (b'"stop_reason":"max_tokens"', b'"reason":"max_output_tokens"'),
    "MAX_TOKENS": (b'"stop_reason":"max_tokens"', b'"reason":"max_output_tokens"'),
    "SAFETY": (b'"stop_reason":"refusal"', b'"reason":"content_filter"'),
    "RECITATION": (b'"stop_reason":"refusal"', b'"reason":"content_filter"'),
    "content_filter: PROHIBITED_CONTENT": (b'"stop_reason":"refusal"', b'"reason":"content_filter"'),
    "refusal": (b'"stop_reason":"refusal"', b'"reason":"content_filter"'),
    "pause_turn": (b'"stop_reason":"pause_turn"', b'"status":"completed"'),
    "model_context_window_exceeded": (
        b'"stop_reason":"model_context_window_exceeded"',
        b'"reason":"max_output_tokens"',
    ),
    "load": (b'"stop_reason":"end_turn"', b'"status":"completed"'),
    "unload": (b'"stop_reason":"end_turn"', b'"status":"completed"'),
    "because": (b'"stop_reason":"end_turn"', b'"status":"completed"'),
}
"""Finish reasons that callers of Messages and of Responses read for each word."""


def known(word: str, messages: bytes, responses: bytes) -> Iterator[Oddity]:
    for stream in (True, False):
        yield Oddity(
            name=f"Chat: ends with {word}, {'streamed' if stream else 'whole'}",
            stream=stream,
            sends=streamed(word) if stream else whole(word),
            views={
                CHAT_COMPLETIONS: Seen(text="Hello", has=(f'"{word}"'.encode(),)),
                MESSAGES: Seen(text="Hello", has=(messages,)),
                RESPONSES: Seen(text="Hello", has=(responses,)),
            },
            billed=REPORTED,
        )


def broken(word: str) -> Iterator[Oddity]:
    has = (word.encode(),)
    failed_stream = Seen(text="Hello", ended="failed", has=has, lacks=ENDINGS)
    error = Seen(status=502, ended="failed", has=has)
    for stream, view, behaviour in ((True, failed_stream, streamed(word)), (False, error, whole(word))):
        form = "streamed" if stream else "whole"
        yield Oddity(
            name=f"Chat: breaks off with {word}, {form}, passed",
            stream=stream,
            sends=behaviour,
            views={CHAT_COMPLETIONS: Seen(text="Hello", has=has)},
            billed=REPORTED,
        )
        yield Oddity(
            name=f"Chat: breaks off with {word}, {form}, translated",
            stream=stream,
            sends=behaviour,
            views={MESSAGES: view, RESPONSES: view},
            billed=REPORTED,
            logged=502,
        )


def streamed(word: str) -> Behaviour:
    return sends(frames(*chat_text("Hello", finish=word), chat_usage(), "[DONE]"))


def whole(word: str) -> Behaviour:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": word}
    answer: Json = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": TARGET_MODEL}
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    return answer_json(200, answer | {"choices": [choice], "usage": usage})


ROWS = (
    *(row for word, meanings in MEANINGS.items() for row in known(word, *meanings)),
    *(row for word in BROKEN for row in broken(word)),
)
