"""Step 2: credential → caller (401 403, 503 when an outage keeps us from knowing).

An unknown key is never refused from memory alone: policy is confirmed with control first (decisions 4). An outage of
ours is never a 401 or 403.
"""

from typing import Protocol

from policy.credentials import credential_in, digest_of, prefix_of
from proxy.exchange import Arrived, Caller, Identified
from proxy.refusals import BadCredentialError, BillingSuspendedError, NoCredentialError, NotOnboardedError


class Directory(Protocol):
    """The replica of policy. Every method raises `PolicyUnavailableError` when there is none to serve from."""

    def caller(self, digest: str) -> Caller | None:
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
        credential = credential_in(incoming.header_values("authorization"), x_api_key)
        if credential is None:
            raise NoCredentialError
        digest = digest_of(credential)
        caller = self._directory.caller(digest) or await self._caller_now(credential, digest)
        if caller is None:
            raise BadCredentialError
        key, workspace, group = caller.key, caller.workspace, caller.group
        if workspace is None or key.kind not in arrived.purpose.users:
            raise BadCredentialError
        if not workspace.onboarded:
            raise NotOnboardedError
        if workspace.billing == "suspended":
            raise BillingSuspendedError
        if group is None and key.group_id is not None:
            raise BadCredentialError  # deleting a group revokes its keys (decisions 4)
        return Identified(arrived, key, workspace, group)

    async def _caller_now(self, credential: str, digest: str) -> Caller | None:
        """Whose key it is when control was asked."""
        if not prefix_of(credential):  # no key was ever of another form: nothing to confirm
            return None
        await self._directory.confirm_unknown()
        return self._directory.caller(digest)
