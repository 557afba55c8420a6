"""The replicas' URLs are checked together: a name that resolves slowly does not make the next one wait."""

import asyncio

import pytest

from control.errors import InvalidFieldError
from control.resources.platform.deployments import check_replicas
from policy.hosts import HostRuleError


class MeetingUrls:
    """Answers when all URLs are being checked. Refuses those whose text says so."""

    def __init__(self, count: int) -> None:
        self._all = asyncio.Barrier(count)

    async def check_base_url(self, url: str) -> None:
        raise NotImplementedError

    async def check_wake_url(self, url: str) -> None:
        raise NotImplementedError

    async def check_replica_url(self, url: str) -> None:
        await self._all.wait()
        if "bad" in url:
            raise HostRuleError("replicas", "not allowed")


async def test_all_names_are_resolved_at_once() -> None:
    urls = [f"http://gpu{number}.example.com/" for number in range(256)]
    async with asyncio.timeout(30):
        replicas = await check_replicas(MeetingUrls(256), [*urls[:255], urls[0]])
    assert replicas == tuple(url.rstrip("/") for url in urls[:255])


async def test_the_first_refused_url_is_named() -> None:
    async with asyncio.timeout(30):
        with pytest.raises(InvalidFieldError) as refused:
            await check_replicas(MeetingUrls(4), ["http://a", "http://bad1", "http://b", "http://bad2"])
    assert (refused.value.field, refused.value.message) == ("replicas.1", "not allowed")
