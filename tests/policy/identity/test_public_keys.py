"""The keys of a provider's set that can verify tokens, and what is kept of them."""

from typing import Any

import jwt
import pytest

from policy.identity.providers import IdentityProviderRow, provider_id
from policy.identity.public_keys import MAX_KEYS, usable_keys
from tests.issuer import encoded, new_key, rsa_key

KEYS = [new_key("rsa", "RS256"), new_key("ec"), new_key("ed", "EdDSA")]


def usable(*keys: Any) -> Any:
    return usable_keys({"keys": list(keys)})


def test_keys_of_each_algorithm_are_usable() -> None:
    assert [(key["kid"], key["alg"]) for key in usable(*(key.public for key in KEYS))] == [
        ("rsa", "RS256"),
        ("ec", "ES256"),
        ("ed", "EdDSA"),
    ]


def test_only_what_verifying_needs_is_kept() -> None:
    [key] = usable({**KEYS[1].public, "d": "AAAA", "x5c": ["AAAA"], "note": "x" * 10_000})
    assert sorted(key) == ["alg", "crv", "kid", "kty", "x", "y"]


def test_alg_and_kid_may_be_missing() -> None:
    public = KEYS[0].public
    [key] = usable({name: public[name] for name in ("kty", "n", "e")})
    assert (key["alg"], "kid" in key) == ("RS256", False)


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (0, {"use": "enc"}),
        (0, {"key_ops": ["sign"]}),
        (0, {"key_ops": "verify"}),
        (0, {"alg": "RS512"}),
        (0, {"alg": "HS256"}),
        (0, {"kty": "oct", "k": "AAAA"}),
        (0, {"kty": ["RSA"]}),
        (0, {"kid": 1}),
        (0, {"kid": "k" * 257}),
        (0, {"e": encoded(b"\x01")}),
        (0, {"e": encoded(b"\x02")}),
        (0, {"e": encoded(b"\x01" + bytes(40))}),
        (0, {"e": "!"}),
        (0, {"n": None}),
        (0, {"n": "A" * 100_000}),
        (1, {"crv": "P-384"}),
        (1, {"crv": "secp256k1"}),
        (1, {"crv": ["P-256"]}),
        (1, {"y": KEYS[1].public["x"]}),  # not on the curve
        (1, {"x": encoded(bytes(31))}),
        (2, {"crv": "X25519"}),
        (2, {"x": encoded(bytes(64))}),
    ],
)
def test_other_keys_are_ignored(number: int, changes: dict[str, Any]) -> None:
    assert usable(KEYS[number].public | changes, KEYS[1].public) == usable(KEYS[1].public)


@pytest.mark.parametrize(("bits", "is_usable"), [(1024, False), (2048, True), (4096, True), (4104, False)])
def test_rsa_keys_have_2048_to_4096_bits(bits: int, is_usable: bool) -> None:
    members = jwt.get_algorithm_by_name("RS256").to_jwk(rsa_key(bits).public_key(), as_dict=True)
    assert bool(usable(members)) is is_usable


@pytest.mark.parametrize("key_set", [None, [], {}, {"keys": {}}, {"keys": "x"}, "keys"])
def test_what_is_no_key_set_is_none(key_set: Any) -> None:
    assert usable_keys(key_set) is None


def test_huge_sets_are_cut() -> None:
    assert len(usable(*[KEYS[1].public] * (MAX_KEYS + 10))) == MAX_KEYS
    assert usable(1, "x", None, []) == ()


def test_provider_has_one_id_per_issuer_and_audience() -> None:
    assert provider_id("https://a/", "b") != provider_id("https://a", "/b")
    row = IdentityProviderRow(provider_id("i", "a"), "w", "i", "a", "org", (KEYS[1].public,))
    assert IdentityProviderRow.from_wire(row.id, row.to_wire()) == row
