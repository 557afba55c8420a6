"""Tells plain conversations: messages that are text, and no members but those that change neither input nor answers.

Pure. Nearly every call is one, and `cost_bound.py` need not look for what it has not.
"""

from collections.abc import Mapping
from typing import Any

from proxy.accounting.call_bound import OUTPUT_CAPS, PLAIN_MESSAGE

CHAT_PATH = "/v1/chat/completions"
MESSAGES_PATH = "/v1/messages"
_PATHS = frozenset((CHAT_PATH, MESSAGES_PATH))
_MEMBERS = frozenset(
    (
        *("model", "messages", "system", "stream", "temperature", "top_p", "stop", "stop_sequences", "seed", "user"),
        *("presence_penalty", "frequency_penalty"),
        *OUTPUT_CAPS,
    )
)


def is_plain_conversation(json: Mapping[str, Any], path: str) -> bool:
    """Return whether the body of a call says so."""
    if not _MEMBERS.issuperset(json) or path not in _PATHS or dict in map(type, json.values()):
        return False
    messages = json.get("messages")
    if type(messages) is not list or ("system" in json and type(json["system"]) is not str):
        return False
    for message in messages:
        if type(message) is not dict or message.keys() != PLAIN_MESSAGE or type(message["content"]) is not str:
            return False
    return True
