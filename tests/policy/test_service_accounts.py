"""Service account secrets, and which private keys are accepted for signing."""

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from policy import service_accounts
from policy.service_accounts import ServiceAccountError, check_secret, private_key
from tests.issuer import rsa_key

KEY = rsa_key()
NUMBERS = KEY.private_numbers()


def pem(key: Any, form: PrivateFormat = PrivateFormat.PKCS8) -> str:
    text: bytes = key.private_bytes(Encoding.PEM, form, NoEncryption())
    return text.decode()


def secret(key: object, **more: object) -> str:
    return base64.b64encode(json.dumps({"private_key": key, **more}).encode()).decode()


def damaged(**changed: int) -> str:
    fields = {name: getattr(NUMBERS, name) for name in ("p", "q", "d", "dmp1", "dmq1", "iqmp")} | changed
    numbers = rsa.RSAPrivateNumbers(public_numbers=NUMBERS.public_numbers, **fields)
    return pem(numbers.private_key(unsafe_skip_rsa_key_validation=True))


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_a_key_in_the_formats_of_vendors_is_accepted(form: PrivateFormat) -> None:
    assert private_key(pem(KEY, form)).private_numbers() == NUMBERS
    check_secret(secret(pem(KEY, form), client_email="bot@p.example"))


@pytest.mark.parametrize(
    "other", ["sk-123", "", "%%", "ü", secret("x").replace("=", "-"), base64.b64encode(b'{"a":1}').decode()]
)
def test_a_secret_that_is_not_a_service_account_is_not_checked(other: str) -> None:
    check_secret(other)


@pytest.mark.parametrize(
    "key",
    [
        1,
        None,
        "",
        "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n",
        pem(ec.generate_private_key(ec.SECP256R1())),
        pem(rsa.generate_private_key(public_exponent=65537, key_size=1024)),
        KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")).decode(),
    ],
    ids=["a number", "null", "empty", "cut", "no RSA", "1024 bits", "a passphrase"],
)
def test_a_private_key_unfit_for_signing_is_refused(key: object) -> None:
    with pytest.raises(ServiceAccountError, match="private_key must be"):
        check_secret(secret(key))


@pytest.mark.parametrize(
    "changed",
    [
        {"d": NUMBERS.d + 2},
        {"dmp1": NUMBERS.dmp1 + 2},
        {"dmq1": NUMBERS.dmq1 + 2},
        {"iqmp": NUMBERS.iqmp + 1},
    ],
    ids="+".join,
)
def test_a_damaged_key_is_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ServiceAccountError, match="damaged"):
        check_secret(secret(damaged(**changed)))


def test_a_key_with_a_composite_factor_is_refused() -> None:
    p = NUMBERS.p
    q = NUMBERS.q
    composite = p * 3
    numbers = rsa.RSAPrivateNumbers(
        composite,
        q,
        d := pow(65537, -1, (composite - 1) * (q - 1)),
        d % (composite - 1),
        d % (q - 1),
        pow(q, -1, composite),
        rsa.RSAPublicNumbers(65537, composite * q),
    )
    with pytest.raises(ServiceAccountError, match="damaged"):
        private_key(pem(numbers.private_key(unsafe_skip_rsa_key_validation=True)))


def test_an_oversized_key_is_refused_without_a_costly_check() -> None:
    """OpenSSL's own check takes fifty times as long at 8192 bits. Its factors are squares, which any check refuses."""
    large = rsa.generate_private_key(public_exponent=65537, key_size=service_accounts.MAX_KEY_BITS)
    p = large.private_numbers().p ** 2
    n = large.private_numbers().public_numbers.n ** 2
    oversized = rsa.RSAPrivateNumbers(
        p, n // p, 65537, 65537, 65537, 65537, rsa.RSAPublicNumbers(65537, n)
    ).private_key(unsafe_skip_rsa_key_validation=True)
    with pytest.raises(ServiceAccountError, match="2048 to 4096 bits"):
        private_key(pem(oversized))
