"""What is a service account, and which keys are signed with."""

import base64
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from policy import service_accounts
from policy.service_accounts import ServiceAccountError, check_secret, private_key

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
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
def test_a_key_as_vendors_make_it_is_sound(form: PrivateFormat) -> None:
    assert private_key(pem(KEY, form)).private_numbers() == NUMBERS
    check_secret(secret(pem(KEY, form), client_email="bot@p.example"))


@pytest.mark.parametrize(
    "other", ["sk-123", "", "%%", "ü", secret("x").replace("=", "-"), base64.b64encode(b'{"a":1}').decode()]
)
def test_another_credential_is_none_of_our_business(other: str) -> None:
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
def test_what_is_no_key_to_sign_with_is_refused(key: object) -> None:
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


def test_numbers_that_are_not_prime_are_found_out() -> None:
    p, q = NUMBERS.p, NUMBERS.q
    composite = p * 3
    made = rsa.RSAPrivateNumbers(
        composite,
        q,
        d := pow(65537, -1, (composite - 1) * (q - 1)),
        d % (composite - 1),
        d % (q - 1),
        pow(q, -1, composite),
        rsa.RSAPublicNumbers(65537, composite * q),
    )
    with pytest.raises(ServiceAccountError, match="damaged"):
        private_key(pem(made.private_key(unsafe_skip_rsa_key_validation=True)))


def test_a_key_of_absurd_size_costs_no_more_than_one_of_a_size_that_is_taken() -> None:
    """OpenSSL's own check takes fifty times as long at 8192 bits. The absurd one's primes are squares: quickly made."""
    large = rsa.generate_private_key(public_exponent=65537, key_size=service_accounts.MAX_KEY_BITS)
    p, n = large.private_numbers().p ** 2, large.private_numbers().public_numbers.n ** 2
    absurd = rsa.RSAPrivateNumbers(p, n // p, 65537, 65537, 65537, 65537, rsa.RSAPublicNumbers(65537, n)).private_key(
        unsafe_skip_rsa_key_validation=True
    )
    taken, text = pem(large), pem(absurd)
    started = time.process_time()
    private_key(taken)
    taken_s = time.process_time() - started
    with pytest.raises(ServiceAccountError, match="2048 to 4096 bits"):
        private_key(text)
    assert time.process_time() - started < 5 * taken_s
