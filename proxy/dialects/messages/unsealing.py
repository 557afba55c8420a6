"""Frees a Messages body of sealed reasoning, for a target whose vendor cannot read our seal.

Pure. A conversation has sealed blocks if its slug had a target of another dialect before.
"""

from collections.abc import Iterator

from policy.endpoints import MESSAGES
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.sealing import MARK, unseal

_OPAQUE = {"thinking": "signature", "redacted_thinking": "data"}
"""The member of a block that holds a seal."""


def without_sealed(body: Json) -> Json:
    """`body` with this dialect's own blocks unsealed and the sealed blocks of others removed.

    A message that would be left empty is removed; the vendor merges its neighbours. Changes nothing in place.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    return body | {"messages": [kept for message in messages for kept in _unsealed(message)]}


def _unsealed(message: object) -> Iterator[object]:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(content, list) or not any(map(_seal_of, content)):
        yield message
        return
    blocks = [kept for block in content for kept in _blocks(block)]
    if blocks:
        yield message | {"content": blocks}


def _blocks(block: object) -> Iterator[object]:
    sealed = _seal_of(block)
    if not sealed:
        yield block
        return
    dialect, native = unseal(sealed) or ("", None)
    if dialect == MESSAGES:
        yield native


def _seal_of(block: object) -> str:
    """The sealed text of a block; empty if there is none."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str):
        return ""
    opaque = block.get(_OPAQUE.get(kind, ""))
    return opaque if isinstance(opaque, str) and opaque.startswith(MARK) else ""
