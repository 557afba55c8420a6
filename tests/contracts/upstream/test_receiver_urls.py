"""Receivers of results are judged by their text and by what their names resolve to now.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio
from ipaddress import ip_address

import pytest

from policy.hosts import Address, EgressRules, HostRuleError
from proxy.edges.upstream import receiver_urls
from proxy.edges.upstream.egress import Resolver
from proxy.edges.upstream.receiver_urls import ReceiverUrls

URL = "https://hooks.example.com/results"


class Table(Resolver):
    """Resolves every name to the same addresses. `silent`: to none, ever."""

    def __init__(self, *addresses: str, silent: bool = False) -> None:
        super().__init__(1)
        self.addresses = tuple(map(ip_address, addresses))
        self.silent = silent
        self.queries: list[str] = []

    async def __call__(self, host: str) -> tuple[Address, ...]:
        self.queries.append(host)
        if self.silent:
            await asyncio.Event().wait()
        if not self.addresses:
            raise OSError("no such name")
        return self.addresses


INSIDE = ("127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fc00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "0.0.0.0")


@pytest.mark.parametrize("address", INSIDE)
async def test_name_that_leads_inside_is_refused_with_its_field(address: str) -> None:
    for addresses in ((address,), ("93.184.215.14", address)):
        with pytest.raises(HostRuleError) as refusal:
            await ReceiverUrls(EgressRules(), Table(*addresses)).check(URL, "webhook_endpoint")
        assert refusal.value.message.startswith("webhook_endpoint: ")
        assert address not in refusal.value.message


@pytest.mark.parametrize(
    "url", ["https://10.0.0.1/", "http://hooks.example.com", "https://api.ours.test/x", "https://hooks.internal", ""]
)
async def test_text_is_judged_before_any_name_is_resolved(url: str) -> None:
    table = Table("93.184.215.14")
    with pytest.raises(HostRuleError, match=r"^webhook_endpoint: "):
        await ReceiverUrls(EgressRules.parse("", ["ours.test"]), table).check(url, "webhook_endpoint")
    assert not table.queries


async def test_public_names_and_links_are_accepted() -> None:
    await ReceiverUrls(EgressRules(), Table("93.184.215.14")).check(URL, "webhook_endpoint")
    table = Table("10.0.0.1")
    await ReceiverUrls(EgressRules.parse("hooks.example.com=127.0.0.1:9"), table).check(URL, "webhook_endpoint")
    assert not table.queries


async def test_name_that_does_not_resolve_in_time_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_urls, "RESOLVE_TIMEOUT_S", 0.01)
    for table in (Table(), Table(silent=True)):
        await ReceiverUrls(EgressRules(), table).check(URL, "webhook_endpoint")
        assert table.queries == ["hooks.example.com"]


async def test_many_names_that_hang_keep_no_further_one_waiting() -> None:
    class Busy(Table):
        pending = receiver_urls.MAX_PENDING

    table = Busy("10.0.0.1")
    await ReceiverUrls(EgressRules(), table).check(URL, "webhook_endpoint")
    assert not table.queries


async def test_name_that_nobody_has_is_accepted() -> None:
    urls = ReceiverUrls(EgressRules())
    await urls.check("https://no-such-host.invalid/", "webhook_endpoint")
    urls.close()
