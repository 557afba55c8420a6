"""The words of the example vendor: its own and the caller's, and the tokens that it reports. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHARS_PER_TOKEN = 4
_QUOTED_WORDS = 40
_SAID = "This is Tollgate's example vendor; no model runs. You said:"
_CAPS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of one token a word. `is_cut`: the call's cap of output tokens ended it."""

    model: str
    words: tuple[str, ...]
    input_tokens: int
    is_cut: bool

    @property
    def text(self) -> str:
        return "".join(self.words)

    @property
    def output_tokens(self) -> int:
        return len(self.words)


def answer_to(body: Mapping[str, Any]) -> Answer:
    """The answer to a request of any of the three dialects. ValueError, with what is wrong, if it asks nothing."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ValueError("model: the name of a model is needed")
    content = body.get("messages") or body.get("input")
    if not content:
        raise ValueError("messages (or input): something to answer is needed")
    words = [f"{word} " for word in (*_SAID.split(), *_latest_text(content).split()[:_QUOTED_WORDS])]
    words[-1] = words[-1].rstrip()
    caps = [cap for name in _CAPS if type(cap := body.get(name)) is int and cap > 0]
    granted = words[: min(caps, default=len(words))]
    return Answer(model, tuple(granted), _tokens_of(body), is_cut=len(granted) < len(words))


def _tokens_of(body: Mapping[str, Any]) -> int:
    return -(-len(json.dumps(body, ensure_ascii=False)) // CHARS_PER_TOKEN)


def _latest_text(content: Any) -> str:
    """The text of the last message, or of what stands in its place."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return _latest_text(content.get("content") or content.get("text") or "")
    if isinstance(content, list):
        return next((text for part in reversed(content) if (text := _latest_text(part))), "")
    return ""
