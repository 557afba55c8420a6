"""Seals a vendor's own block in text that a caller of another dialect keeps and returns with its next turn.

Pure. A sealed text goes where the caller's dialect has an opaque member: the signature of a thinking block, the
`encrypted_content` of a reasoning item, the `data` of `reasoning_details`. It is not secret, and nothing is trusted
for being sealed: the vendor verifies its own block.

See docs/reference/inference.md#reasoning.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import orjson

MARK = "tollgate.1."
"""Begins every sealed text. No vendor's signature begins like it."""

FOREIGN_REASONING = "the turn began without this vendor's reasoning"
"""Why a vendor that requires its own blocks back is asked not to think."""


def seal(dialect: str, native: dict[str, Any]) -> str:
    """`native`, a block of `dialect`, as text: the mark, the dialect, a dot, and base64url without padding."""
    return f"{MARK}{dialect}.{urlsafe_b64encode(orjson.dumps(native)).decode().rstrip('=')}"


def unseal(text: str) -> tuple[str, dict[str, Any]] | None:
    """The dialect and the block of a sealed text; None for any other text, a damaged one included."""
    dialect, dot, encoded = text.removeprefix(MARK).partition(".")
    if not text.startswith(MARK) or not dot:
        return None
    try:
        native = orjson.loads(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except ValueError:
        return None
    return (dialect, native) if isinstance(native, dict) else None


def has_reasoning(body: dict[str, Any]) -> bool:
    """Whether the turns of a body hold reasoning, which may be sealed."""
    items = body.get("input")
    if isinstance(items, list):
        return any(isinstance(item, dict) and item.get("type") == "reasoning" for item in items)
    turns = body.get("messages")
    return isinstance(turns, list) and any(map(_thinks, turns))


def _thinks(turn: object) -> bool:
    if not isinstance(turn, dict):
        return False
    if "reasoning_details" in turn:
        return True
    content = turn.get("content")
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking") for block in content
    )
