"""Resources as the API shows them, for its answers and for the audit trail. Never a secret, a key or their digests."""

from typing import Any

import orjson

from control.edges.sql.store import now_ms
from control.records.audit import Shown
from control.records.policy import EndpointRecord, GroupRecord, KeyRecord, SecretRecord
from control.records.times import optional_time_text, time_text
from control.records.webhooks import PENDING, DeliveryRecord, WebhookRecord
from control.resources.changes.long_lists import shown_lists
from control.resources.changes.ownership import R, has_drifted
from policy.endpoints import as_written
from policy.keys.states import key_state
from policy.limits.limit import limit_to_wire
from policy.snapshot import models_entry_to_wire, target_to_wire
from policy.spend.limits import spend_limit_to_wire


def shown_owner(record: R) -> dict[str, Any]:
    """The member `managed_by`; nothing if no policy file owns the resource."""
    if record.managed_by is None or record.managed_at_ms is None:
        return {}
    applied_at = time_text(record.managed_at_ms)
    return {"managed_by": {"name": record.managed_by, "applied_at": applied_at, "drifted": has_drifted(record)}}


def shown_endpoint(record: EndpointRecord) -> dict[str, Any]:
    target = as_written(target_to_wire(record.target), record.alias)
    fields = {"id": record.id, "slug": record.slug, "region": record.region, "targets": [target]}
    return fields | _times(record) | shown_owner(record)


def shown_group(record: GroupRecord) -> dict[str, Any]:
    """The group without its long lists, `models` and `effective_models`, and what it inherits."""
    group = record.group
    return {
        "id": group.id,
        "metadata": {"external_entity_id": group.external_entity_id, "name": record.name},
        "hierarchy": {"limit_enforcement": group.enforcement.value, "parent_group_id": group.parent_id},
        "alert_percents": list(record.alert_percents),
        "spend_limits": [spend_limit_to_wire(limit) for limit in record.spend_limits],
        **_times(record),
        **shown_owner(record),
    }


def group_sides(before: GroupRecord | None, after: GroupRecord | None) -> tuple[Shown | None, Shown | None]:
    """A group before and after a change, with its own `models`. What its ancestors add is not the change."""
    entries = [_model_entries(record) for record in (before, after)]
    old, new = shown_lists("models", *entries)
    return _joined(before, old), _joined(after, new)


def _joined(record: GroupRecord | None, lists: Shown) -> Shown | None:
    return None if record is None else {**shown_group(record), **lists}


def _model_entries(record: GroupRecord | None) -> list[bytes]:
    models = () if record is None else record.group.models
    return [orjson.dumps(models_entry_to_wire(entry)) for entry in models]


def shown_key(record: KeyRecord) -> dict[str, Any]:
    """A key of a group with its settings, or one of the workspace with its `type` and `role`."""
    if record.group_id is None:
        return {**shown_key_name(record), "type": record.kind, "role": record.role}
    return {**shown_key_name(record), **shown_key_settings(record)}


def shown_key_name(record: KeyRecord) -> dict[str, Any]:
    """The name of a key, and its use."""
    return {
        "prefix": record.prefix,
        "name": record.name,
        "created_at": time_text(record.created_at_ms),
        "last_used_at": optional_time_text(record.last_used_at_ms),
    }


def shown_key_settings(record: KeyRecord) -> dict[str, Any]:
    """The settings of a key, and its state now."""
    settings = record.key_settings
    return {
        "state": key_state(settings, record.replaced_by is not None, now_ms()).value,
        "expires_at": optional_time_text(settings.expires_at_ms),
        "disabled": settings.disabled,
        "allowed_ips": list(settings.allowed_ips) or None,
        "slugs": None if settings.slugs is None else list(settings.slugs),
        "rate_limits": [limit_to_wire(limit) for limit in settings.rate_limits],
        "spend_limits": [spend_limit_to_wire(limit) for limit in settings.spend_limits],
        "replaced_by": record.replaced_by,
    }


def shown_secret(record: SecretRecord) -> dict[str, Any]:
    return {"id": record.id, "name": record.name, **_times(record), **shown_owner(record)}


def shown_webhook(record: WebhookRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "url": record.url,
        "description": record.description,
        "enabled": record.enabled,
        "include_details": record.include_details,
        "event_types": orjson.loads(record.event_types),
        "group_id": record.group_id,
        **_times(record),
        "previous_secret_expires_at": optional_time_text(record.previous_until_ms),
        **shown_owner(record),
    }


def shown_delivery(record: DeliveryRecord) -> dict[str, Any]:
    """The delivery without its attempts."""
    return {
        "id": record.id,
        "type": record.type,
        "status": record.status,
        "event_count": len(orjson.loads(record.event_keys)),
        "attempt_count": record.attempts,
        "created_at": time_text(record.created_at_ms),
        "next_attempt_at": time_text(record.next_attempt_at_ms) if record.status == PENDING else None,
        "ended_at": optional_time_text(record.ended_at_ms),
    }


def _times(record: EndpointRecord | GroupRecord | SecretRecord | WebhookRecord) -> dict[str, str]:
    return {"created_at": time_text(record.created_at_ms), "updated_at": time_text(record.updated_at_ms)}
