"""Identifies callers by tokens of their workspace's identity provider (403, or 503 if an outage prevents an answer).

A token that may hold is never refused for what this machine may not know yet: providers, keys and groups are looked for
again after control was asked. An unverified token leads to no question but about its provider.

See docs/reference/inference.md#tokens-of-an-identity-provider.
"""

from collections.abc import Callable

from policy.credentials import KeyKind, token_prefix
from policy.identity.providers import IdentityProviderRow, provider_id
from policy.identity.tokens import TokenError, UnverifiedToken, fault_of, key_for, read_token
from policy.keys.settings import KeySettings
from policy.snapshot import KeyRow
from proxy.directory_values import KeyHolder
from proxy.errors import PolicyUnavailableError
from proxy.parts import Directory
from proxy.refusals import BadCredentialError


class TokenCallers:
    """Finds the holders of tokens. What it finds is kept in the directory until policy changes, or the token ends."""

    def __init__(self, directory: Directory, now_ms: Callable[[], int]) -> None:
        self._directory = directory
        self._now_ms = now_ms

    async def holder(self, text: str, id: str, may_ask: bool) -> KeyHolder:
        """The holder of a token. `id`: what it is kept by. `may_ask`: the caller presents no key of ours besides.

        Raises `BadCredentialError` or `PolicyUnavailableError`.
        """
        token = self._read(text)
        for has_asked in (not may_ask, True):
            provider = await self._verifying_provider(token, may_ask=may_ask)
            entity = _entity(token, provider)
            holder = self._directory.token_holder(provider, entity, _key_row(token, id, provider))
            if holder is not None:
                return holder
            if not has_asked:
                await self._directory.confirm_unknown()
        raise BadCredentialError

    def _read(self, text: str) -> UnverifiedToken:
        try:
            token = read_token(text)
        except TokenError:
            raise BadCredentialError from None
        if fault_of(token, self._now_ms() / 1000):
            raise BadCredentialError
        return token

    async def _verifying_provider(self, token: UnverifiedToken, *, may_ask: bool) -> IdentityProviderRow:
        """The provider that has issued this token, for us, and signed it."""
        provider = self._provider(token)
        if provider is None and may_ask:
            await self._directory.confirm_unknown(may_be_ours=False)
            provider = self._provider(token)
        if provider is None:
            raise BadCredentialError
        if await self._is_signed(token, provider):
            return provider
        if provider.keys is None or token.kid is None or key_for(token, provider.keys) is None:
            if not await self._directory.confirm_keys(provider.id):
                raise PolicyUnavailableError("the keys of an identity provider cannot be fetched")
            provider = self._provider(token)
            if provider is not None and await self._is_signed(token, provider):
                return provider
        raise BadCredentialError

    async def _is_signed(self, token: UnverifiedToken, provider: IdentityProviderRow) -> bool:
        key = key_for(token, provider.keys or ())
        return key is not None and await self._directory.is_signed_by(token, key)

    def _provider(self, token: UnverifiedToken) -> IdentityProviderRow | None:
        """The provider of the token's issuer and audience. A token for two workspaces of ours is for none of them."""
        ids = [provider_id(token.issuer, audience) for audience in token.audiences]
        providers = [row for row in map(self._directory.identity_provider, ids) if row is not None]
        if len(providers) > 1:
            raise BadCredentialError
        return providers[0] if providers else None


def _entity(token: UnverifiedToken, provider: IdentityProviderRow) -> str:
    try:
        return token.entity(provider.entity_claim)
    except TokenError:
        raise BadCredentialError from None


def _key_row(token: UnverifiedToken, id: str, provider: IdentityProviderRow) -> KeyRow:
    """The row of a key that may do what the token may; its group is not known yet."""
    settings = KeySettings(expires_at_ms=int(token.ends_at_s * 1000))
    prefix = token_prefix(token.subject)
    return KeyRow(id, prefix, KeyKind.FEDERATED, provider.workspace_id, None, settings)
