"""Has control fetch the keys of an identity provider, for a token whose key is not known here.

Tokens with made-up keys cost control one question per provider and `GAP_S`. Used by the supervisor only.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import aiohttp
import orjson

from runtime.http.control_session import ControlSession
from runtime.log_lines import OutageLog
from runtime.tls.pinned import PeerTls

PATH = "/internal/v1/identity_providers/{}/refresh"
GAP_S = 5.0
"""The time after an answer in which a token of another unknown key is refused without asking again."""
_TIMEOUT = aiohttp.ClientTimeout(total=14, sock_connect=2)
log = logging.getLogger(__name__)


class ProviderKeys:
    """A client of one control plane. `follow`: fetches policy, where the keys arrive; returns whether it could."""

    def __init__(
        self, control_url: str, internal_token: str, follow: Callable[[], Awaitable[bool]], tls: PeerTls = True
    ) -> None:
        self._url = control_url + PATH
        self._follow = follow
        self._session = ControlSession(internal_token, _TIMEOUT, tls)
        self._questions: dict[str, asyncio.Task[bool]] = {}
        self._answered_at_s: dict[str, float] = {}
        """The time at which control last said that it has the keys of a provider."""
        self._outage = OutageLog(log)

    async def refresh(self, provider_id: str) -> bool:
        """Return whether control has the provider's keys of now, or of just before, and the replica has them, too."""
        now_s = time.monotonic()
        self._answered_at_s = {id: at_s for id, at_s in self._answered_at_s.items() if now_s - at_s < GAP_S}
        if provider_id in self._answered_at_s:
            return True
        question = self._questions.get(provider_id)
        if question is None:
            question = asyncio.create_task(self._ask(provider_id))
            self._questions[provider_id] = question
            question.add_done_callback(lambda _: self._questions.pop(provider_id, None))
        return await asyncio.shield(question)

    async def close(self) -> None:
        for question in list(self._questions.values()):
            question.cancel()
        await asyncio.gather(*self._questions.values(), return_exceptions=True)
        await self._session.close()

    async def _ask(self, provider_id: str) -> bool:
        if not await self._is_fetched(provider_id) or not await self._follow():
            return False
        self._answered_at_s[provider_id] = time.monotonic()
        return True

    async def _is_fetched(self, provider_id: str) -> bool:
        url = self._url.format(quote(provider_id, safe=""))
        try:
            async with self._session.request("POST", url) as answer:
                body = orjson.loads(await answer.read())
                is_fetched = answer.status == 200 and body["fetched"] is True
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            self._outage.begins(
                f"Control could not be asked for keys of an identity provider ({type(error).__name__}); tokens of keys"
                " that are not known here are answered 503. Check control and the network."
            )
            return False
        self._outage.ends("Control answers about keys of identity providers again.")
        return is_fetched
