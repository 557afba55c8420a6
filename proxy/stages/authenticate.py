"""Step 2: identify the caller by its credential (400 401 402 403, or 503 if an outage prevents an answer).

An unknown key is refused only after control has confirmed the policy replica. An outage of ours is never a 401 or 403.

See docs/reference/management-api.md#federated-keys.
"""

from collections.abc import Sequence
from typing import Protocol

from policy.credentials import credentials_in, digest_of, prefix_of
from proxy.exchange import Identified, KeyHolder, RequestHead
from proxy.refusals import (
    AmbiguousCredentialError,
    BadCredentialError,
    BillingSuspendedError,
    NoCredentialError,
    NotOnboardedError,
)


class Directory(Protocol):
    """The policy replica. Every method raises `PolicyUnavailableError` if there is none."""

    def key_holder(self, digest: str) -> KeyHolder | None:
        """The holder of the key with this digest; None if there is no such key."""
        ...

    async def confirm_unknown(self) -> None:
        """Wait until control has confirmed the policy replica. Rate-limited."""
        ...


class Authenticate:
    """Finds out who calls, and whether the workspace may call at all."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def __call__(self, head: RequestHead) -> Identified:
        incoming = head.incoming
        x_api_key = () if incoming.header("x-api-key") is None else incoming.header_values("x-api-key")
        credentials = credentials_in(incoming.header_values("authorization"), x_api_key)
        if not credentials:
            raise NoCredentialError
        holders = self._key_holders(credentials) or await self._confirmed_key_holders(credentials)
        if len(holders) > 1:
            raise AmbiguousCredentialError
        if not holders:
            raise BadCredentialError
        holder = holders[0]
        key, workspace, group = holder.key, holder.workspace, holder.group
        if workspace is None or key.kind not in head.purpose.users:
            raise BadCredentialError
        if not workspace.onboarded:
            raise NotOnboardedError
        if workspace.billing == "suspended":
            raise BillingSuspendedError
        if group is None and key.group_id is not None:
            raise BadCredentialError  # deleting a group revokes its keys
        return Identified(key, workspace, group)

    def _key_holders(self, credentials: Sequence[str]) -> list[KeyHolder]:
        """The holders of those credentials that are our keys; others are ignored."""
        found = (self._directory.key_holder(digest_of(credential)) for credential in credentials)
        return [holder for holder in found if holder is not None]

    async def _confirmed_key_holders(self, credentials: Sequence[str]) -> list[KeyHolder]:
        """The same, after control has confirmed the policy replica."""
        if not any(map(prefix_of, credentials)):  # keys have no other form, so there is nothing to confirm
            return []
        await self._directory.confirm_unknown()
        return self._key_holders(credentials)
