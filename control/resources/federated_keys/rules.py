"""The rules for the settings of a federated key, checked inside the transaction that saves them.

Each refusal names the field. What a change leaves as it was is not checked again: a slug that the group has lost, or
an end that has passed, forbids no other change.

See docs/reference/management-api.md#settings-of-a-key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from control.edges.sql import group_rows
from control.edges.sql.store import WriteTx
from control.errors import GroupNotFoundError, InvalidFieldError
from control.records.policy import GroupRecord
from control.resources.policy_feed import check_key_settings_known_to_proxies
from control.resources.spend.tree_limits import check_currency_in_tree, checked_spend_limits
from policy.keys.networks import NetworkError, canonical_network
from policy.keys.settings import NO_SETTINGS, KeySettings
from policy.limits.limit import IllegalLimitsError, Limit, SlugLimits, check_slug_limits

MAX_NETWORKS = 100
MAX_SLUGS = 500


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The keys of one group of a workspace."""

    workspace_id: str
    group_id: str


async def group_of(tx: WriteTx, owner: GroupKeys, locks_tree: bool = False) -> GroupRecord:
    """The group that has the keys. `locks_tree`: with its tree locked until the transaction ends."""
    if locks_tree:
        group = await group_rows.lock_tree(tx, owner.workspace_id, owner.group_id)
    else:
        group = await group_rows.find_group(tx.conn, owner.workspace_id, owner.group_id)
    if group is None:
        raise GroupNotFoundError
    return group


async def checked_settings(
    tx: WriteTx, group: GroupRecord, settings: KeySettings, old: KeySettings = NO_SETTINGS, prefix: str = ""
) -> KeySettings:
    """The settings in canonical form, for a key of this group. `old`, `prefix`: of the key, if it exists.

    With spend limits the group's tree must be locked. Raises `InvalidFieldError`, `OlderProxiesError` and
    `OtherCurrencyError`.
    """
    expires_at_ms = settings.expires_at_ms
    if expires_at_ms is not None and expires_at_ms != old.expires_at_ms and expires_at_ms <= tx.now_ms:
        raise InvalidFieldError(
            "expires_at", "expires_at: must be in the future; to end a key now, revoke it or set disabled"
        )
    checked = replace(
        settings,
        allowed_ips=checked_networks(settings.allowed_ips),
        spend_limits=checked_spend_limits(settings.spend_limits),
    )
    if settings.slugs != old.slugs:
        _check_slugs(group, settings.slugs or ())
    _check_rate_limits(settings.rate_limits)
    if checked != old:
        await check_key_settings_known_to_proxies(tx, checked)
    if checked.spend_limits and checked.spend_limits != old.spend_limits:
        await check_currency_in_tree(tx.conn, group.root_id, checked.spend_limits[0].currency, but=prefix)
    return checked


def checked_networks(texts: Sequence[str]) -> tuple[str, ...]:
    """The networks in canonical text, each once."""
    networks: dict[str, None] = {}
    for index, text in enumerate(texts):
        try:
            networks[canonical_network(text)] = None
        except NetworkError as error:
            field = f"allowed_ips.{index}"
            raise InvalidFieldError(field, f"{field}: {error}") from None
    return tuple(networks)


def _check_slugs(group: GroupRecord, slugs: Sequence[str]) -> None:
    """Refuse a slug that the group may not call, and one that is named twice."""
    callable_slugs = {entry.slug for entry in group.group.models}
    earlier_slugs: set[str] = set()
    for index, slug in enumerate(slugs):
        field = f"slugs.{index}"
        if slug in earlier_slugs:
            raise InvalidFieldError(field, f"{field}: {slug} is named twice")
        if slug not in callable_slugs:
            raise InvalidFieldError(field, f"{field}: the group may not call {slug}; add it to its models first")
        earlier_slugs.add(slug)


def _check_rate_limits(limits: tuple[Limit, ...]) -> None:
    try:
        check_slug_limits(SlugLimits("rate_limits", limits))  # the message begins with the name
    except IllegalLimitsError as error:
        raise InvalidFieldError("rate_limits", str(error)) from None
