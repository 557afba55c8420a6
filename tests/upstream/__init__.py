"""The scripted upstream: one server for all tests, and the behaviours that they script."""

from tests.upstream.behaviours import (
    answer,
    answer_json,
    chunked,
    early,
    endless,
    gated,
    head,
    held,
    raw,
    silent,
)
from tests.upstream.chat_completions import Usage, chat, chat_body, chat_frames
from tests.upstream.exchange import Behaviour, Exchange, Gate, Received
from tests.upstream.server import ScriptedUpstream, in_thread

__all__ = [
    "Behaviour",
    "Exchange",
    "Gate",
    "Received",
    "ScriptedUpstream",
    "Usage",
    "answer",
    "answer_json",
    "chat",
    "chat_body",
    "chat_frames",
    "chunked",
    "early",
    "endless",
    "gated",
    "head",
    "held",
    "in_thread",
    "raw",
    "silent",
]
