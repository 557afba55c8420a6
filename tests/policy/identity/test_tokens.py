"""The rules of a token. Each test of an attack signs with a real key wherever a signature could be valid."""

import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from policy.identity.public_keys import usable_keys
from policy.identity.tokens import (
    LEEWAY_S,
    MAX_AUDIENCES,
    MAX_TOKEN_CHARS,
    TokenError,
    fault_of,
    is_signed_by,
    key_for,
    read_token,
)
from tests.issuer import Issuer, SigningKey, encoded, new_key, signed, signed_by_secret

ISSUER = Issuer(keys=[new_key("first")], port=1)
KEY = ISSUER.keys[0]
HEADER = {"alg": "ES256", "kid": "first"}


def holds(token: str, keys: list[SigningKey] | None = None, now_s: float | None = None) -> bool:
    """Return whether it is well-formed, of now, and signed by a key that it names."""
    usable = usable_keys({"keys": [key.public for key in keys or [KEY]]}) or ()
    try:
        read = read_token(token)
    except TokenError:
        return False
    key = key_for(read, usable)
    return not fault_of(read, time.time() if now_s is None else now_s) and key is not None and is_signed_by(read, key)


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA"])
def test_token_of_each_algorithm_holds(alg: str) -> None:
    key = new_key("other", alg)
    assert holds(ISSUER.token(key), [KEY, key])
    read = read_token(ISSUER.token(key, aud=["else", "tollgate", "else"]))
    assert (read.issuer, read.subject, read.entity("org")) == (ISSUER.url, "user-1", "acme")
    assert read.audiences == ("else", "tollgate")


def test_token_without_kid_holds_by_the_only_key_of_its_algorithm() -> None:
    token = signed(KEY, {"alg": "ES256"}, ISSUER.claims())
    assert holds(token, [KEY, new_key("rsa", "RS256")])
    assert not holds(token, [KEY, new_key("second")])


def test_unsigned_tokens_are_refused() -> None:
    claims = ISSUER.claims()
    for alg in ("none", "None", "NONE", ""):
        for signature in ("", "AAAA"):
            assert not holds(f"{encoded({'alg': alg, 'kid': 'first'})}.{encoded(claims)}.{signature}")
    assert not holds(ISSUER.token().rpartition(".")[0] + ".")


def test_a_public_key_is_no_secret_of_an_hmac() -> None:
    key = new_key("rsa", "RS256")
    pem = key.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for secret in (pem, pem.strip(), json.dumps(key.public).encode(), key.public["n"].encode()):
        for alg in ("HS256", "RS256"):
            assert not holds(signed_by_secret(secret, {"alg": alg, "kid": "rsa"}, ISSUER.claims()), [key])


def test_a_key_verifies_only_its_own_algorithm() -> None:
    rsa = new_key("rsa", "RS256")
    header = {"alg": "RS256", "kid": "first"}
    assert not holds(signed(rsa, header, ISSUER.claims()), [KEY])
    assert not holds(signed(KEY, {"alg": "EdDSA", "kid": "first"}, ISSUER.claims()))
    assert not holds(signed(rsa, {"alg": "PS256", "kid": "rsa"}, ISSUER.claims()), [rsa])


def test_signature_of_another_key_or_of_other_claims_is_refused() -> None:
    assert not holds(ISSUER.token(new_key("first")))
    head, _, signature = ISSUER.token().split(".")
    assert not holds(f"{head}.{encoded(ISSUER.claims(org='rich'))}.{signature}")


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["exp"]},
        {"crit": ["b64"], "b64": False},
        {"b64": True},
        {"typ": "logout+jwt"},
        {"typ": "dpop+jwt"},
        {"typ": 1},
        {"kid": 1},
        {"kid": ""},
        {"kid": "k" * 257},
        {"alg": ["ES256"]},
        {"alg": "es256"},
    ],
)
def test_header_is_refused(header: dict[str, Any]) -> None:
    assert not holds(ISSUER.token(header=header))


def test_keys_in_the_token_itself_are_never_used() -> None:
    attacker = new_key("first")
    for header in ({"jwk": attacker.public}, {"jku": "https://evil.example/keys"}, {"x5u": "https://evil.example/"}):
        assert not holds(ISSUER.token(attacker, header))


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "application/at+jwt"])
def test_types_of_access_tokens_hold(typ: str) -> None:
    assert holds(ISSUER.token(header={"typ": typ}))


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": None},
        {"iss": 1},
        {"iss": ["https://login.example.com/tenant"]},
        {"aud": None},
        {"aud": []},
        {"aud": {}},
        {"aud": [1]},
        {"aud": ["a"] * (MAX_AUDIENCES + 1)},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "s" * 1025},
        {"sub": "\ud800"},
        {"exp": None},
        {"exp": "2099-01-01"},
        {"exp": True},
        {"exp": 1e300},
        {"nbf": "0"},
        {"iat": []},
    ],
)
def test_claims_are_refused(claims: dict[str, Any]) -> None:
    assert not holds(ISSUER.token(**claims))


def test_times_hold_with_a_leeway_of_a_minute() -> None:
    now_s = 1_800_000_000
    token = ISSUER.token(exp=now_s, nbf=now_s - 500, iat=now_s - 500)
    assert holds(token, now_s=now_s + LEEWAY_S - 1)
    assert not holds(token, now_s=now_s + LEEWAY_S)
    for name in ("nbf", "iat"):
        times: dict[str, Any] = {"exp": now_s + 900, "iat": now_s, name: now_s + LEEWAY_S}
        token = ISSUER.token(**times)
        assert holds(token, now_s=now_s)
        assert not holds(token, now_s=now_s - 1)


@pytest.mark.parametrize(
    "text",
    [
        '{"alg":"ES256","alg":"none","kid":"first"}',
        '{"alg":"ES256","kid":"first","x":{"a":1,"a":2}}',
        "[]",
        "1",
        "{",
        '{"alg":"ES256","kid":"first","x":NaN}',
        '{"alg":"ES256","kid":"first","x":' + "9" * 5000 + "}",
        '{"alg":"ES256","kid":"first","x":' + "[" * 2000 + "]" * 2000 + "}",
    ],
)
def test_headers_that_parsers_could_read_differently_are_refused(text: str) -> None:
    assert not holds(signed(KEY, text, ISSUER.claims()))


def test_a_claim_that_is_named_twice_is_refused() -> None:
    claims = json.dumps(ISSUER.claims())
    assert holds(signed(KEY, HEADER, claims))
    assert not holds(signed(KEY, HEADER, claims[:-1] + ', "org": "rich"}'))
    assert not holds(signed(KEY, HEADER, claims[:-1] + ', "\\u006frg": "rich"}'))


def test_oversized_token_is_refused_before_it_is_read() -> None:
    assert holds(ISSUER.token(x="y" * 1000))
    token = ISSUER.token(x="y" * MAX_TOKEN_CHARS)
    with pytest.raises(TokenError, match="too long"):
        read_token(token)


def test_malformed_base64_is_refused() -> None:
    head, claims, signature = ISSUER.token().split(".")
    for changed in (f"{head}=.{claims}.{signature}", f"{head}.{claims}A.{signature}", f"{head}.{claims}.{signature}A"):
        assert not holds(changed)
    assert not holds(f"{encoded(bytes([255, 254]))}.{claims}.{signature}")


@pytest.mark.parametrize("value", [None, "", 7, ["acme"], {"id": "acme"}, "e" * 256, True, "\udc80"])
def test_entity_must_be_short_text(value: Any) -> None:
    read = read_token(ISSUER.token(org=value))
    with pytest.raises(TokenError):
        read.entity("org")
