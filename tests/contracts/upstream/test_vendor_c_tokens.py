"""VendorCTokens against a scripted token endpoint on real sockets, plain and TLS."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from policy.hosts import EgressRules
from proxy.dialects.vendor_rules import vendor_c
from proxy.edges.upstream.client import HttpUpstream
from proxy.edges.upstream.egress import Egress
from proxy.edges.upstream.vendor_c_tokens import TokenEndpoints, VendorCTokens
from proxy.errors import UpstreamUnreachableError
from proxy.refusals import TargetCredentialError
from tests import upstream as script
from tests.fakes.throwaway_ca import ThrowawayCa
from tests.issuer import rsa_key
from tests.upstream import ScriptedUpstream
from tests.waiting import PATIENCE_S

BOTH_LOOPS = True
KEY = rsa_key()
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()


class Clock:
    """The real clock, plus the jumps that a test makes."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return perf_counter() + self.ahead_s


class Rig:
    """A token endpoint, a client for it, and the tokens under test."""

    def __init__(self, endpoint: ScriptedUpstream) -> None:
        self.endpoint = endpoint
        self.clock = Clock()
        self.upstream = HttpUpstream(Egress(EgressRules(), 5.0))
        self.tokens = VendorCTokens(self.upstream, TokenEndpoints(EgressRules(), endpoint.url), self.clock)
        self.secret = secret(f"{endpoint.url}/token")


def secret(token_uri: str, **changed: Any) -> str:
    account = {"client_email": "robot@p.example", "private_key_id": "k1", "private_key": PEM, "token_uri": token_uri}
    return base64.b64encode(json.dumps(account | changed).encode()).decode()


def gives(token: str, expires_in: int = 3600) -> script.Behaviour:
    return script.answer_json(200, {"access_token": token, "expires_in": expires_in, "token_type": "Bearer"})


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with ScriptedUpstream() as endpoint:
        rig = Rig(endpoint)
        yield rig
        await rig.tokens.aclose()
        await rig.upstream.aclose()


async def test_token_request_is_signed_by_the_account(rig: Rig) -> None:
    rig.endpoint.plan(gives("token-1"))
    assert await rig.tokens.token(rig.secret) == "token-1"
    received = rig.endpoint.received[0]
    assert (received.method, received.target) == ("POST", "/token")
    assert received.header("content-type") == "application/x-www-form-urlencoded"
    form = parse_qs(received.body.decode())
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    signed, _, signature = form["assertion"][0].rpartition(".")
    KEY.public_key().verify(decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    claims = json.loads(decoded(signed.split(".")[1]))
    assert (claims["iss"], claims["aud"]) == ("robot@p.example", f"{rig.endpoint.url}/token")


async def test_concurrent_calls_share_one_token_request(rig: Rig) -> None:
    rig.endpoint.plan(gives("token-1"))
    assert set(await asyncio.gather(*(rig.tokens.token(rig.secret) for _ in range(50)))) == {"token-1"}
    assert await rig.tokens.token(rig.secret) == "token-1"
    assert len(rig.endpoint.received) == 1


async def test_accounts_do_not_share_tokens(rig: Rig) -> None:
    rig.endpoint.plan(gives("token-1"), gives("token-2"))
    other = secret(f"{rig.endpoint.url}/token", client_email="other@p.example")
    assert await rig.tokens.token(rig.secret) == "token-1"
    assert await rig.tokens.token(other) == "token-2"
    assert await rig.tokens.token(rig.secret) == "token-1"


async def test_token_is_renewed_in_the_background_before_it_expires(rig: Rig) -> None:
    gate = asyncio.Event()
    body = json.dumps({"access_token": "token-2", "expires_in": 3600}).encode()
    slow = script.held(gate, after=script.head(200, {"content-length": str(len(body))}) + body)
    rig.endpoint.plan(gives("token-1"), slow)
    assert await rig.tokens.token(rig.secret) == "token-1"
    rig.clock.ahead_s += 3600 - 299
    assert await rig.tokens.token(rig.secret) == "token-1"
    await rig.endpoint.until(lambda: len(rig.endpoint.received) == 2)
    assert await rig.tokens.token(rig.secret) == "token-1"
    gate.set()
    async with asyncio.timeout(PATIENCE_S):
        while await rig.tokens.token(rig.secret) != "token-2":
            await asyncio.sleep(0)
    assert len(rig.endpoint.received) == 2


async def test_expired_token_is_not_used(rig: Rig) -> None:
    rig.endpoint.plan(gives("token-1"), gives("token-2"))
    assert await rig.tokens.token(rig.secret) == "token-1"
    rig.clock.ahead_s += 3595
    assert await rig.tokens.token(rig.secret) == "token-2"


async def test_failed_renewal_keeps_the_old_token_and_pauses(rig: Rig) -> None:
    rig.endpoint.plan(gives("token-1"), script.answer(503), gives("token-2"))
    assert await rig.tokens.token(rig.secret) == "token-1"
    rig.clock.ahead_s += 3600 - 200
    assert await rig.tokens.token(rig.secret) == "token-1"
    async with asyncio.timeout(PATIENCE_S):
        while len(rig.endpoint.received) < 2 or rig.tokens._fetching:
            await asyncio.sleep(0)
    for _ in range(5):
        assert await rig.tokens.token(rig.secret) == "token-1"
    assert len(rig.endpoint.received) == 2
    rig.clock.ahead_s += 6
    await rig.tokens.token(rig.secret)
    async with asyncio.timeout(PATIENCE_S):
        while await rig.tokens.token(rig.secret) != "token-2":
            await asyncio.sleep(0)


async def test_cancelled_call_does_not_cancel_the_token_request(rig: Rig) -> None:
    rig.endpoint.plan(gives("token-1"))
    first, second = (asyncio.ensure_future(rig.tokens.token(rig.secret)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "token-1"


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_refused_account_is_a_refused_credential(rig: Rig, status: int) -> None:
    rig.endpoint.plan(script.answer_json(status, {"error": "invalid_grant"}), gives("token-1"))
    with pytest.raises(TargetCredentialError):
        await rig.tokens.token(rig.secret)
    assert await rig.tokens.token(rig.secret) == "token-1"


@pytest.mark.parametrize(
    "behaviour",
    [
        script.answer(500),
        script.answer(429),
        script.answer(302, headers={"location": "https://elsewhere.example"}),
        script.answer(200, b"not json"),
        script.answer(200, b'{"access_token": 7}'),
        script.answer(200, b'{"access_token": "a\\nb"}'),
        script.answer(200, b"{}"),
        script.answer(200, b" " * 70_000),
    ],
)
async def test_failing_token_endpoint_is_unreachable(rig: Rig, behaviour: script.Behaviour) -> None:
    rig.endpoint.plan(behaviour)
    with pytest.raises(UpstreamUnreachableError) as failure:
        await rig.tokens.token(rig.secret)
    assert "127.0.0.1" not in str(failure.value)


@pytest.mark.parametrize(
    "broken",
    ["", "not base64!", "bm90IGpzb24=", base64.b64encode(b"{}").decode(), secret("https://x.example", private_key="x")],
)
async def test_malformed_account_is_a_refused_credential(rig: Rig, broken: str) -> None:
    with pytest.raises(TargetCredentialError) as failure:
        await rig.tokens.token(broken)
    assert "PRIVATE" not in str(failure.value)
    assert not rig.endpoint.received


@pytest.mark.parametrize(
    "token_uri",
    [
        "http://169.254.169.254/token",
        "https://169.254.169.254/token",
        "https://10.0.0.1/token",
        "https://localhost/token",
        "http://oauth2.example.com/token",
        "https://metadata.google.internal/token",
        "http://127.0.0.1:1/token",
    ],
)
async def test_token_endpoint_obeys_the_rules_for_customers(rig: Rig, token_uri: str) -> None:
    with pytest.raises(TargetCredentialError):
        await rig.tokens.token(secret(token_uri))


async def test_token_endpoint_behind_a_link_is_reached(caplog: pytest.LogCaptureFixture, tmp_path_factory: Any) -> None:
    caplog.set_level(logging.DEBUG)
    authority = ThrowawayCa(tmp_path_factory.mktemp("ca"))
    async with ScriptedUpstream(tls=authority.server_context("oauth.example")) as endpoint:
        rules = EgressRules.parse(f"oauth.example=127.0.0.1:{endpoint.port}")
        upstream = HttpUpstream(Egress(rules, 5.0, str(authority.ca_file)))
        tokens = VendorCTokens(upstream, TokenEndpoints(rules))
        endpoint.plan(gives("token-very-secret"))
        assert await tokens.token(secret("https://oauth.example/token")) == "token-very-secret"
        await tokens.aclose()
        await upstream.aclose()
    assert "token-very-secret" not in caplog.text
    assert "PRIVATE KEY" not in caplog.text


def decoded(segment: str) -> bytes:
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


async def test_account_is_parsed_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing checks the key, which is slow and holds the GIL."""
    bad = secret(f"{rig.endpoint.url}/token", private_key="none")
    read: list[str] = []

    def watched(value: str) -> vendor_c.ServiceAccount:
        read.append(value)
        return account(value)

    account = vendor_c.service_account
    monkeypatch.setattr(vendor_c, "service_account", watched)
    rig.endpoint.plan(gives("token-1"), gives("token-2"))
    assert await rig.tokens.token(rig.secret) == "token-1"
    rig.clock.ahead_s += 3600
    assert await rig.tokens.token(rig.secret) == "token-2"
    for _ in range(2):
        with pytest.raises(TargetCredentialError):
            await rig.tokens.token(bad)
    assert read == [rig.secret, bad]


async def test_oversized_key_in_the_store_is_not_used(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    n = KEY.private_numbers().public_numbers.n
    p = KEY.private_numbers().p
    numbers = rsa.RSAPrivateNumbers(p**4, n**4 // p**4, 3, 3, 3, 3, rsa.RSAPublicNumbers(65537, n**4))
    absurd = numbers.private_key(unsafe_skip_rsa_key_validation=True).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(TargetCredentialError):
        await rig.tokens.token(secret(f"{rig.endpoint.url}/token", private_key=absurd.decode()))
    assert rig.endpoint.received == []
    assert "2048 to 4096 bits" in caplog.text
    assert "PRIVATE" not in caplog.text
