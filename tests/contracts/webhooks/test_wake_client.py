"""The client of wake hooks on real sockets: it dials checked addresses of replicas' rules only, and follows nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import pytest

from control.edges.wake_client import WakeClient
from policy.hosts import Address, EgressRules
from tests.contracts.webhooks.test_webhook_client import NAME, Receiver, ca, receiving, resolving
from tests.fakes.throwaway_ca import ThrowawayCa

__all__ = ["ca"]
REFUSED = "the URL may not be called"
REFUSED_ADDRESS = "the name resolves to an address that may not be called"
LOOPBACK = EgressRules.parse("127.0.0.0/8")


async def post(
    url: str,
    rules: EgressRules,
    resolve: Callable[[str], Awaitable[list[Address]]] | None = None,
    timeout_s: float = 10.0,
) -> str:
    client = WakeClient(rules, None, resolve or resolving("127.0.0.1"), timeout_s)
    try:
        return await client.post(url, b"{}")
    finally:
        await client.close()


def at(receiver: Receiver, host: str = "127.0.0.1", path: str = "/wake/s%2Fecret?key=%41") -> str:
    return f"http://{host}:{receiver.port}{path}"


async def test_hook_in_an_allowed_network_is_called_exactly_as_it_is_written() -> None:
    async with receiving(None) as receiver:
        assert await post(at(receiver), LOOPBACK) == ""
        assert await post(at(receiver, "launcher.example.com"), LOOPBACK) == ""
    for request in receiver.requests:
        assert request.startswith(b"POST /wake/s%2Fecret?key=%41 HTTP/1.1\r\n")
        assert request.endswith(b"\r\n\r\n{}")


async def test_private_link_is_dialled_over_tls(ca: ThrowawayCa) -> None:
    async with receiving(ca.server_context(NAME)) as receiver:
        client = WakeClient(EgressRules.parse(f"{NAME}=127.0.0.1:{receiver.port}"), str(ca.ca_file))
        assert await client.post(f"https://{NAME}/in", b"{}") == ""
        await client.close()


@pytest.mark.parametrize(
    ("url", "rules"),
    [
        ("http://127.0.0.1:{port}/", ""),
        ("http://10.0.0.1/", "127.0.0.0/8"),
        ("http://169.254.169.254/latest/meta-data/", "0.0.0.0/0"),
        ("http://[::ffff:169.254.169.254]/", "::/0"),
        ("http://0.0.0.0:{port}/", "0.0.0.0/0"),
        ("http://2130706433:{port}/", "0.0.0.0/0"),
        ("http://metadata.google.internal/", "0.0.0.0/0"),
        ("http://user:secret@127.0.0.1:{port}/", "127.0.0.0/8"),
        ("file:///etc/passwd", "127.0.0.0/8"),
    ],
)
async def test_stored_url_is_checked_again_before_dialling(url: str, rules: str) -> None:
    async with receiving(None) as receiver:
        assert await post(url.format(port=receiver.port), EgressRules.parse(rules)) == REFUSED
    assert receiver.requests == []


@pytest.mark.parametrize(
    ("addresses", "rules"),
    [
        (("127.0.0.1",), ""),
        (("93.184.215.14", "10.0.0.1"), ""),
        (("169.254.169.254",), "0.0.0.0/0"),
        (("127.0.0.1", "169.254.169.254"), "0.0.0.0/0"),
        (("::ffff:169.254.169.254",), "0.0.0.0/0"),
    ],
)
async def test_name_with_one_forbidden_address_is_not_dialled(addresses: tuple[str, ...], rules: str) -> None:
    async with receiving(None) as receiver:
        url = at(receiver, "launcher.example.com")
        assert await post(url, EgressRules.parse(rules), resolving(*addresses)) == REFUSED_ADDRESS
    assert receiver.requests == []


async def test_name_that_is_rebound_is_checked_at_each_call() -> None:
    """The answer to the one look-up decides; there is no second look-up that could say something else."""
    answers = ["127.0.0.1", "169.254.169.254", "127.0.0.1"]
    lookups = list[str]()

    async def rebinding(host: str) -> list[Address]:
        lookups.append(host)
        return [ip_address(answers[len(lookups) - 1])]

    async with receiving(None) as receiver:
        url = at(receiver, "launcher.example.com")
        client = WakeClient(EgressRules.parse("0.0.0.0/0"), None, rebinding)
        results = [await client.post(url, b"{}") for _ in range(3)]
        await client.close()
    assert results == ["", REFUSED_ADDRESS, ""]
    assert len(receiver.requests) == 2
    assert lookups == ["launcher.example.com"] * 3


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_to_metadata_is_not_followed(status: int) -> None:
    answer = f"HTTP/1.1 {status} x\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n"
    async with receiving(None, answer.encode()) as receiver:
        assert await post(at(receiver), EgressRules.parse("0.0.0.0/0")) == f"answered {status}"
    assert len(receiver.requests) == 1


async def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with receiving(None) as receiver:
        assert await post(at(receiver), LOOPBACK) == ""


async def test_hook_that_never_answers_times_out() -> None:
    async with receiving(None, None) as receiver:
        assert await post(at(receiver), LOOPBACK, timeout_s=0.3) == "no answer in time"


async def test_name_whose_look_up_hangs_times_out() -> None:
    async def never(_host: str) -> list[Address]:
        await asyncio.Event().wait()
        return []

    assert await post("http://launcher.example.com/", LOOPBACK, never, timeout_s=0.3) == "no answer in time"


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 99 x\r\n\r\n", b""])
async def test_answer_that_is_not_http_is_a_failure(answer: bytes) -> None:
    async with receiving(None, answer) as receiver:
        assert await post(at(receiver), LOOPBACK)


async def test_endless_answer_is_not_read() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 100_000
    async with receiving(None, answer) as receiver:
        assert await post(at(receiver), LOOPBACK) == ""


async def test_refused_connection_and_unknown_name_are_told_apart() -> None:
    async with receiving(None) as receiver:
        pass
    assert await post(at(receiver), LOOPBACK) == "the connection was refused"
    assert await post("http://launcher.example.com/", LOOPBACK, resolving()) == "the name does not resolve"
