"""Step 2: identify the caller by its credential (400 401 402 403, or 503 if an outage prevents an answer).

An unknown key is refused only after control has confirmed the policy replica. An outage of ours is never a 401 or 403.

See docs/reference/management-api.md#federated-keys.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from policy.credentials import (
    TOKEN_ID,
    KeyKind,
    credential_id,
    credentials_in,
    digest_of,
    is_token,
    prefix_of,
    unregistrable,
)
from policy.keys.permissions import Permission, permissions_of
from proxy.callers.caller_addresses import CallerAddresses
from proxy.callers.caller_terms import CallerTerms
from proxy.directory_values import Identified, KeyHolder
from proxy.exchange import RequestContext
from proxy.parts import Directory
from proxy.records.head_facts import HeadFacts
from proxy.records.messages import Incoming
from proxy.refusals import (
    AmbiguousCredentialError,
    BadCredentialError,
    BillingSuspendedError,
    NoCredentialError,
    NotOnboardedError,
)

TokenHolder = Callable[[str, str, bool], Awaitable[KeyHolder]]
"""Finds the holder of a token: by its text, by the id that it is kept by, and by whether control may be asked."""


class Authenticate:
    """Finds out who calls, and whether the workspace may call at all."""

    def __init__(
        self, directory: Directory, token_holder: TokenHolder, now_ms: Callable[[], int], addresses: CallerAddresses
    ) -> None:
        self._directory = directory
        self._token_holder = token_holder
        self._now_ms = now_ms
        self._addresses = addresses
        self.recalled: Callable[[HeadFacts], Identified | None] = directory.caller
        """The caller whom `known` has found before, by the same head and under the same policy.

        Whoever has terms must be put to `check_terms` after it.
        """

    def known(self, context: RequestContext) -> Identified | None:
        """The caller, by what the policy replica knows. None: control has to be asked."""
        facts = context.facts
        digests = facts.digests
        if digests is None:
            digests = facts.digests = tuple(map(credential_id, _credentials(context.incoming)))
        if len(digests) == 1:  # nearly every call
            holder = self._directory.key_holder(digests[0])
            if holder is None:
                return None
            identified = self._identified(context, holder)
            if facts.repeats:
                self._directory.keep_caller(facts, identified)
            return identified
        if not digests:
            raise NoCredentialError
        holders = self._key_holders(digests)
        if len(holders) < len(digests) and any(digest.startswith(TOKEN_ID) for digest in digests):
            return None
        return self._identified(context, _only(holders)) if holders else None

    async def confirmed(self, context: RequestContext) -> Identified:
        """The same for a caller who is not known, after control has confirmed the policy replica."""
        credentials = _credentials(context.incoming)
        keys = [credential for credential in credentials if not is_token(credential)]
        holders = self._key_holders(map(digest_of, keys)) if len(keys) < len(credentials) else []
        for credential in credentials:
            if is_token(credential):
                holders += await self._token_holders(context, credential, may_ask=not holders)
        if keys and not holders:
            holders = await self._confirmed_holders(keys)
        if not holders:
            raise BadCredentialError
        return self._identified(context, _only(holders))

    def check_terms(self, context: RequestContext, identified: Identified, terms: CallerTerms) -> None:
        """Refuse a caller out of time or place as one whose key was revoked. Reports name it even then."""
        context.identified = identified
        if self._now_ms() >= terms.ends_at_ms:
            raise BadCredentialError
        if terms.addresses is not None and self._addresses.of(context.incoming) not in terms.addresses:
            raise BadCredentialError

    def _identified(self, context: RequestContext, holder: KeyHolder) -> Identified:
        """The caller, unless it may not use this path or its workspace may not call. Reports name it even then."""
        context.identified = identified = holder.identified
        key = holder.key
        if identified is None or key.kind not in context.facts.purpose.users:
            raise BadCredentialError
        if key.role is not None and Permission.INVOKE not in permissions_of(key.kind, key.role):
            raise BadCredentialError
        if identified.terms is not None:
            self.check_terms(context, identified, identified.terms)
        if not identified.workspace.onboarded:
            raise NotOnboardedError
        if identified.workspace.billing == "suspended":
            raise BillingSuspendedError
        if identified.group is None and key.group_id is not None:
            raise BadCredentialError  # deleting a group revokes its keys
        return identified

    async def _confirmed_holders(self, keys: Sequence[str]) -> list[KeyHolder]:
        """The holders of keys that are not known, after control has confirmed the policy replica."""
        may_be_ours = any(map(prefix_of, keys))
        if not may_be_ours and all(map(unregistrable, keys)):  # keys have no other form: nothing to confirm
            return []
        await self._directory.confirm_unknown(may_be_ours=may_be_ours)
        return self._key_holders(map(digest_of, keys))

    async def _token_holders(self, context: RequestContext, token: str, *, may_ask: bool) -> list[KeyHolder]:
        """The holder of a token, if it holds. It is never looked for among the keys."""
        if KeyKind.FEDERATED not in context.facts.purpose.users:
            return []
        try:
            return [await self._token_holder(token, credential_id(token), may_ask)]
        except BadCredentialError:
            return []

    def _key_holders(self, digests: Iterable[str]) -> list[KeyHolder]:
        """The holders of those credentials that are our keys; others are ignored."""
        holders = (self._directory.key_holder(digest) for digest in digests)
        return [holder for holder in holders if holder is not None]


def _credentials(incoming: Incoming) -> tuple[str, ...]:
    x_api_key = () if incoming.header("x-api-key") is None else incoming.header_values("x-api-key")
    return credentials_in(incoming.header_values("authorization"), x_api_key)


def _only(holders: Sequence[KeyHolder]) -> KeyHolder:
    if len(holders) > 1:
        raise AmbiguousCredentialError
    return holders[0]
