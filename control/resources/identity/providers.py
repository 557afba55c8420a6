"""The identity provider of a workspace as its owner manages it: put, read, delete.

Its tokens name groups of the workspace; proxies verify them with its public keys, which control fetches.

See docs/reference/management-api.md#identity-provider.
"""

from dataclasses import replace
from typing import Any, Protocol

from control.edges.sql.database import TakenError
from control.edges.sql.identity import provider_rows
from control.edges.sql.store import Store, WriteTx
from control.edges.sql.workspace_rows import lock_workspace
from control.errors import IdentityProviderNotFoundError, IdentityProviderTakenError, InvalidFieldError
from control.records.audit import Change
from control.records.identity.providers import FetchedKeys, IdentityProviderRecord, ProviderSettings
from control.records.times import optional_time_text, time_text
from control.resources.identity.key_source import Documents, discovery_url, fetch_keys
from policy.hosts import HostRuleError

PLACE = "identity_provider"
"""The name of the resource in the audit trail."""


class Urls(Protocol):
    """Checks URLs under the egress rules. Satisfied by `UpstreamUrlChecker`."""

    async def check_download_url(self, url: str, field: str) -> None: ...


async def check_urls(urls: Urls, settings: ProviderSettings) -> None:
    """Refuse a URL of keys that may not be called. Call it before the transaction: it resolves names."""
    field = "issuer" if settings.jwks_url is None else "jwks_url"
    url = discovery_url(settings.issuer) if settings.jwks_url is None else settings.jwks_url
    if field == "issuer" and "?" in url:
        raise InvalidFieldError(field, "issuer: must have no query, so that its discovery document is found")
    try:
        await urls.check_download_url(url, field)
    except HostRuleError as error:
        remedy = "; or give jwks_url" if field == "issuer" else ""
        raise InvalidFieldError(field, f"{error}{remedy}") from None


async def put_provider(
    store: Store, documents: Documents, workspace_id: str, settings: ProviderSettings
) -> IdentityProviderRecord:
    """Store the provider in place of the workspace's present one, with its keys, if they can be fetched now.

    Keys that cannot be fetched now are those from before, if they are fetched from the same place.
    """
    fetched = await fetch_keys(documents, settings.issuer, settings.jwks_url)

    async def work(tx: WriteTx) -> IdentityProviderRecord:
        await lock_workspace(tx, workspace_id)
        old = await provider_rows.lock_provider(tx, workspace_id)
        record = fetched_record(_put(tx, workspace_id, settings, old), fetched, tx.now_ms)
        await provider_rows.put_provider(tx, record)
        if old is not None and old.id != record.id:
            provider_rows.withdraw_provider(tx, old.id)
        provider_rows.publish_provider(tx, record)
        before = None if old is None else _audited(old)
        if before != _audited(record):
            action = "identity_provider.create" if old is None else "identity_provider.update"
            tx.audit(workspace_id, Change(action, PLACE, before, _audited(record)))
        return record

    try:
        return await store.transact(work)
    except TakenError:
        raise IdentityProviderTakenError from None


async def read_provider(store: Store, workspace_id: str) -> IdentityProviderRecord:
    async with store.read() as conn:
        return _existing(await provider_rows.find_provider(conn, workspace_id))


async def remove_provider(store: Store, workspace_id: str) -> IdentityProviderRecord:
    """Delete the provider; its tokens are refused as soon as proxies know. Returns what it was."""

    async def work(tx: WriteTx) -> IdentityProviderRecord:
        record = _existing(await provider_rows.lock_provider(tx, workspace_id))
        await provider_rows.delete_provider(tx, workspace_id)
        provider_rows.withdraw_provider(tx, record.id)
        tx.audit(workspace_id, Change("identity_provider.delete", PLACE, _audited(record), None))
        return record

    return await store.transact(work)


def fetched_record(record: IdentityProviderRecord, fetched: FetchedKeys, now_ms: int) -> IdentityProviderRecord:
    """The record after an attempt to fetch its keys. A failed one changes no key."""
    if fetched.keys is None:
        return replace(record, last_error=fetched.error, ended_at_ms=now_ms)
    return replace(record, key_set=fetched.key_set, keys_fetched_at_ms=now_ms, last_error=None, ended_at_ms=now_ms)


def shown_provider(record: IdentityProviderRecord) -> dict[str, Any]:
    """The provider as the API shows it."""
    keys = None if record.keys is None else [{"kid": key.get("kid"), "alg": key["alg"]} for key in record.keys]
    return {
        **_audited(record),
        "keys": keys,
        "keys_fetched_at": optional_time_text(record.keys_fetched_at_ms),
        "last_error": record.last_error,
        "created_at": time_text(record.created_at_ms),
        "updated_at": time_text(record.updated_at_ms),
    }


def _audited(record: IdentityProviderRecord) -> dict[str, Any]:
    """The provider as its owner described it."""
    names = ("issuer", "audience", "jwks_url", "entity_claim")
    return {name: getattr(record, name) for name in names}


def _put(
    tx: WriteTx, workspace_id: str, settings: ProviderSettings, old: IdentityProviderRecord | None
) -> IdentityProviderRecord:
    """The provider with these settings. It keeps what is known of its keys if they come from the same place."""
    is_same_place = old is not None and (old.issuer, old.jwks_url) == (settings.issuer, settings.jwks_url)
    return IdentityProviderRecord(
        workspace_id,
        settings.id,
        settings.issuer,
        settings.audience,
        settings.entity_claim,
        settings.jwks_url,
        created_at_ms=tx.now_ms if old is None else old.created_at_ms,
        updated_at_ms=tx.now_ms,
        key_set=old.key_set if old is not None and is_same_place else None,
        keys_fetched_at_ms=old.keys_fetched_at_ms if old is not None and is_same_place else None,
        attempted_at_ms=tx.now_ms,
    )


def _existing(record: IdentityProviderRecord | None) -> IdentityProviderRecord:
    if record is None:
        raise IdentityProviderNotFoundError
    return record
