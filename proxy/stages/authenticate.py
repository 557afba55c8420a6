"""Step 2: credential → caller (400 401 403, 503 when an outage keeps us from knowing).

An unknown key is never refused from memory alone: policy is confirmed with control first. An outage of
ours is never a 401 or 403.

See docs/reference/management-api.md#federated-keys.
"""

from collections.abc import Sequence
from typing import Protocol

from policy.credentials import credentials_in, digest_of, prefix_of
from proxy.exchange import Arrived, Identified, KeyHolder
from proxy.refusals import (
    AmbiguousCredentialError,
    BadCredentialError,
    BillingSuspendedError,
    NoCredentialError,
    NotOnboardedError,
)


class Directory(Protocol):
    """The replica of policy. Every method raises `PolicyUnavailableError` when there is none to serve from."""

    def key_holder(self, digest: str) -> KeyHolder | None:
        """Whose key this is; None when there is no such key."""
        ...

    async def confirm_unknown(self) -> None:
        """Returns when policy was just confirmed with control; rate-limited."""
        ...


class Authenticate:
    """Finds the caller, and whether its workspace may call at all."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def __call__(self, arrived: Arrived) -> Identified:
        incoming = arrived.incoming
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
        if workspace is None or key.kind not in arrived.purpose.users:
            raise BadCredentialError
        if not workspace.onboarded:
            raise NotOnboardedError
        if workspace.billing == "suspended":
            raise BillingSuspendedError
        if group is None and key.group_id is not None:
            raise BadCredentialError  # deleting a group revokes its keys
        return Identified(arrived, key, workspace, group)

    def _key_holders(self, credentials: Sequence[str]) -> list[KeyHolder]:
        """Who holds those of these that are keys of ours; a credential that is not is for somebody else."""
        found = (self._directory.key_holder(digest_of(credential)) for credential in credentials)
        return [holder for holder in found if holder is not None]

    async def _confirmed_key_holders(self, credentials: Sequence[str]) -> list[KeyHolder]:
        """Likewise, when control was asked."""
        if not any(map(prefix_of, credentials)):  # no key was ever of another form: nothing to confirm
            return []
        await self._directory.confirm_unknown()
        return self._key_holders(credentials)
