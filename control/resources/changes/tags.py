"""The entity tag of a resource: it changes with each write of what the API shows (record 0095). No SQL, no HTTP.

A tag is made of ids and versions, never of contents: it tells no secret, and every process and release has the same.
Each write raises `updated_at_ms`, also within one millisecond.
"""

import hashlib
from collections.abc import Iterable, Sequence

from control.records.policy import EndpointRecord, GroupRecord, PriceRecord
from control.records.webhooks import WebhookRecord

_DIGITS = 32


def record_tag(record: EndpointRecord | WebhookRecord) -> str:
    return _tag([(record.id, record.updated_at_ms)])


def group_tag(path: Sequence[GroupRecord]) -> str:
    """`path`: the group, its parent, and so on to the root, whose limits are shown in it as effective ones."""
    return _tag((record.group.id, record.updated_at_ms) for record in path)


def price_tag(record: PriceRecord) -> str:
    return _tag([(f"{record.price.slug} {record.price.valid_from_ms}", record.updated_at_ms)])


def _tag(versions: Iterable[tuple[str, int]]) -> str:
    text = "\n".join(f"{id} {version}" for id, version in versions)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
