"""Frees a Responses body of sealed reasoning, for a target whose vendor cannot read our seal.

Pure. A conversation has sealed items if its slug had a target of another dialect before.
"""

from collections.abc import Iterator

from policy.endpoints import RESPONSES
from proxy.dialects.middle.answer_reading import objects_in
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.sealing import MARK, Seals


def native_reasoning(native: Json) -> Json | None:
    """Return the members of an opened item that a vendor of this dialect may get back; None if it is no reasoning."""
    if native.get("type") != "reasoning":
        return None
    members: Json = {name: native[name] for name in ("id", "encrypted_content") if isinstance(native.get(name), str)}
    members |= {name: objects_in(native, name) for name in ("summary", "content") if native.get(name)}
    return {"type": "reasoning", "summary": []} | members


def without_sealed(body: Json, seals: Seals) -> Json:
    """Return `body` with this dialect's own reasoning items unsealed and the sealed items of others removed.

    Changes nothing in place.
    """
    items = body.get("input")
    if not isinstance(items, list):
        return body
    native_items: list[object] = []
    for place, item in enumerate(items):
        native_items += _unsealed(item, f"input.{place}", seals)
    return body | {"input": native_items}


def _unsealed(item: object, field: str, seals: Seals) -> Iterator[object]:
    sealed = item.get("encrypted_content") if isinstance(item, dict) else None
    if not isinstance(sealed, str) or not sealed.startswith(MARK):
        yield item
    elif (native := seals.native(RESPONSES, sealed, f"{field}.encrypted_content")) is not None:
        yield native
