"""Seals of a fixed key, for tests of readers and writers."""

from typing import Any

from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from proxy.dialects.middle.request import Reasoning, Request
from proxy.dialects.middle.sealing import MARK, SealKeys, Seals

WORKSPACE = "ws_1"
SEAL_KEYS = SealKeys((bytes(32),), {})
ANY_BLOCK = dict.fromkeys((CHAT_COMPLETIONS, MESSAGES, RESPONSES), lambda block: block)


def seals_of(place: str = "VENDOR_B https://b.test") -> Seals:
    """The seals of a target, to which any block is reasoning."""
    return Seals(SEAL_KEYS, WORKSPACE, place, ANY_BLOCK)


def seal(dialect: str, block: dict[str, Any], place: str = "VENDOR_B https://b.test") -> str:
    return seals_of(place).seal(dialect, block)


def unseal(text: str) -> tuple[str, dict[str, Any]] | None:
    """The block that `seals_of()` sealed; None for text that is not sealed."""
    return seals_of().open(text, "sealed") if text.startswith(MARK) else None


def opened(request: Request) -> Request:
    """`request` with all sealed reasoning of its turns opened, whatever its dialect."""
    for part in (part for turn in request.turns for part in turn.parts if isinstance(part, Reasoning) and part.sealed):
        part.dialect, part.native = unseal(part.sealed) or ("", None)
        part.sealed = ""
    return request
