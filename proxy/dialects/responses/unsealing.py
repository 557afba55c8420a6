"""Frees a Responses body of sealed reasoning, for a target whose vendor cannot read our seal.

Pure. A conversation has sealed items if its slug had a target of another dialect before.
"""

from collections.abc import Iterator

from policy.endpoints import RESPONSES
from proxy.dialects.middle.reading import Json
from proxy.dialects.middle.sealing import MARK, unseal


def without_sealed(body: Json) -> Json:
    """`body` with this dialect's own reasoning items unsealed and the sealed items of others removed.

    Changes nothing in place.
    """
    items = body.get("input")
    if not isinstance(items, list):
        return body
    return body | {"input": [kept for item in items for kept in _unsealed(item)]}


def _unsealed(item: object) -> Iterator[object]:
    sealed = item.get("encrypted_content") if isinstance(item, dict) else None
    if not isinstance(sealed, str) or not sealed.startswith(MARK):
        yield item
        return
    dialect, native = unseal(sealed) or ("", None)
    if dialect == RESPONSES:
        yield native
