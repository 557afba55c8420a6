"""Lists in the audit trail. A change of a long one shows what differs: a group may have 1000 models.

Otherwise a tenant could fill the database with copies of one large resource.
"""

from collections.abc import Collection, Sequence
from typing import Any

import orjson

MAX_LIST_BYTES = 65_536
"""The most bytes of one list on one side of a change."""


def shown_lists(name: str, before: Sequence[bytes], after: Sequence[bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The member `name` of both sides, whose items are JSON already. Long lists have only the items that the other
    side lacks, of these as many as fit, and in `{name}_left_out` the number of the others."""
    if all(sum(map(len, items)) <= MAX_LIST_BYTES for items in (before, after)):
        return {name: _array(before)}, {name: _array(after)}
    return _differing(name, before, set(after)), _differing(name, after, set(before))


def _differing(name: str, items: Sequence[bytes], unchanged: Collection[bytes]) -> dict[str, Any]:
    differing: list[bytes] = []
    room = MAX_LIST_BYTES
    for item in items:
        if item not in unchanged and len(item) <= room:
            differing.append(item)
            room -= len(item)
    return {name: _array(differing), f"{name}_left_out": len(items) - len(differing)}


def _array(items: Sequence[bytes]) -> orjson.Fragment:
    return orjson.Fragment(b"[" + b",".join(items) + b"]")
