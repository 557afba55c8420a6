"""Names that lead to forbidden addresses are refused when written; names that do not resolve are not.

See docs/reference/management-api.md#egress-rules.
"""

import asyncio
from ipaddress import ip_address

import pytest

from control.edges import name_resolution
from control.edges.name_resolution import UpstreamUrlChecker
from policy.hosts import Address, EgressRules, HostRuleError

URL = "https://llm.example.com"


class Resolving(UpstreamUrlChecker):
    """Resolves every name to the same addresses."""

    def __init__(self, *addresses: str, allow: str = "") -> None:
        super().__init__(EgressRules.parse(allow))
        self._addresses: list[Address] = [ip_address(address) for address in addresses]

    async def resolve(self, host: str) -> list[Address]:
        return self._addresses


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("224.0.0.1", "255.255.255.255", "::1", "fe80::1", "fc00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002::1"),
    ],
)
async def test_a_name_that_leads_inside_is_refused(address: str) -> None:
    with pytest.raises(HostRuleError):
        await Resolving(address).check_base_url(URL)
    with pytest.raises(HostRuleError):
        await Resolving("93.184.215.14", address).check_base_url(URL)
    with pytest.raises(HostRuleError):
        await Resolving(address).check_replica_url("http://replica.example.com:8000")
    with pytest.raises(HostRuleError) as refused:
        await Resolving("93.184.215.14", address).check_wake_url("http://launcher.example.com:8000/s3cret?x=1")
    assert refused.value.field == "wake_url"
    assert "s3cret" not in refused.value.message


async def test_public_and_unknown_names_are_accepted() -> None:
    await Resolving("93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c").check_base_url(URL)
    await Resolving().check_base_url(URL)


async def test_what_the_operator_allows() -> None:
    await Resolving("10.1.2.3", allow="10.0.0.0/8").check_replica_url("http://replica.example.com:8000")
    await Resolving("10.1.2.3", allow="10.0.0.0/8").check_wake_url("http://launcher.example.com:8000/wake?x=1")
    with pytest.raises(HostRuleError):
        await Resolving("10.1.2.3", allow="10.0.0.0/8").check_base_url(URL)
    await Resolving("10.1.2.3", allow="llm.example.com=10.1.2.3:443").check_base_url(URL)


async def test_a_resolver_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_resolution, "RESOLVE_TIMEOUT_S", 0.01)

    async def silent(*_args: object, **_more: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", silent)
    assert await UpstreamUrlChecker(EgressRules()).resolve("llm.example.com") == []


async def test_this_machine_resolves_to_itself() -> None:
    assert ip_address("127.0.0.1") in await UpstreamUrlChecker(EgressRules()).resolve("localhost")
