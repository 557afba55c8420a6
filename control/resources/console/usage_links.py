"""Links to the usage page of one group, for frames in a customer's portal: whoever has one reads it until it expires.

A link is sealed, so its reader learns nothing from it, and bound to the key that minted it and to the group. It opens
nothing by itself: both are looked up whenever it is used, so revoking the key or deleting the group ends it.

See docs/reference/console.md#usage-links.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from control.edges.sql.console.visitor_rows import find_group_of_key, find_group_of_onboarded, find_named_group
from control.edges.sql.store import Store, WriteTx, now_ms
from control.errors import GroupNotFoundError, InvalidFieldError
from control.records.audit import PERSON_PREFIX, Change
from control.records.console import NamedGroup
from control.records.ids import new_nonce
from control.records.times import time_text
from policy.sealing import TokenSealer

MAX_ORIGINS = 8
MAX_ORIGIN_CHARS = 255
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_ORIGIN = re.compile(rf"https?://{_LABEL}(?:\.{_LABEL})*(?::([1-9][0-9]{{0,4}}))?")


@dataclass(frozen=True, slots=True)
class UsageLink:
    """The group that a link opens, for which key, until when, and the origins whose pages may frame it."""

    workspace_id: str
    group_id: str
    key_prefix: str
    expires_at_ms: int
    frame_origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NewLink:
    """A link that the key of this prefix wants for a group."""

    workspace_id: str
    group_id: str
    key_prefix: str
    expires_in_s: int
    frame_origins: Sequence[str]


class UsageLinkSealer:
    """Makes the tokens of links, and reads them."""

    def __init__(self, secret_keys: Sequence[bytes]) -> None:
        self._tokens = TokenSealer(secret_keys, "tollgate usage link")

    def seal(self, link: UsageLink) -> str:
        values = [link.workspace_id, link.group_id, link.key_prefix, link.expires_at_ms, link.frame_origins]
        return self._tokens.seal(values, new_nonce())

    def open(self, token: str) -> UsageLink | None:
        """Return the link that was sealed here, expired or not; None for any other text."""
        values = self._tokens.open(token)
        if values is None:
            return None
        workspace_id, group_id, key_prefix, expires_at_ms, origins = values
        return UsageLink(workspace_id, group_id, key_prefix, expires_at_ms, tuple(origins))


async def mint_link(store: Store, link: NewLink) -> UsageLink:
    """A link from now on. GroupNotFoundError; InvalidFieldError for an origin."""
    origins = checked_origins(link.frame_origins)

    async def work(tx: WriteTx) -> UsageLink:
        if await find_named_group(tx.conn, link.workspace_id, link.group_id) is None:
            raise GroupNotFoundError
        until_ms = tx.now_ms + link.expires_in_s * 1000
        fields = {"expires_at": time_text(until_ms), "frame_origins": list(origins)}
        tx.audit(link.workspace_id, Change("usage_link.create", f"groups/{link.group_id}/usage_links", None, fields))
        return UsageLink(link.workspace_id, link.group_id, link.key_prefix, until_ms, origins)

    return await store.transact(work)


async def group_of_link(store: Store, link: UsageLink) -> NamedGroup | None:
    """The group that the link shows; None once it has expired, its key was revoked or its group was deleted.

    A person has no key to revoke: a link that a person made ends by itself, within 30 days.
    """
    if now_ms() >= link.expires_at_ms:
        return None
    async with store.read() as conn:
        if link.key_prefix.startswith(PERSON_PREFIX):
            return await find_group_of_onboarded(conn, link.workspace_id, link.group_id)
        return await find_group_of_key(conn, link.workspace_id, link.group_id, link.key_prefix)


def checked_origins(texts: Sequence[str]) -> tuple[str, ...]:
    """The origins in lower case, each once. They become part of a header, so nothing but plain origins may pass."""
    origins = [_checked_origin(f"frame_origins.{place}", origin) for place, origin in enumerate(texts)]
    return tuple(dict.fromkeys(origins))


def _checked_origin(field: str, origin: str) -> str:
    match = _ORIGIN.fullmatch(origin.lower()) if origin.isascii() else None
    if match is None or int(match[1] or 1) > 65_535:
        raise InvalidFieldError(
            field, "must be an origin such as https://portal.example: scheme, host, optional port; no path, no wildcard"
        )
    return match[0]
