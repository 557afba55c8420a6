"""VENDOR_C's path, its service account, and an assertion that verifies with the public key."""

import base64
from dataclasses import replace
from urllib.parse import parse_qs

import orjson
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from policy.endpoints import VendorCConfig
from policy.service_accounts import ServiceAccountError
from proxy.dialects.vendor_rules import vendor_c
from proxy.errors import UpstreamUnreachableError
from proxy.settings import settings_from
from tests.issuer import rsa_key
from tests.proxy.dialects.samples import SLUG, VENDOR_C, build_request, received

KEY = rsa_key()


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


FIELDS = {
    "type": "service_account",
    "client_email": "bot@my-project.iam.example",
    "private_key_id": "k1",
    "private_key": pem(KEY),
    "token_uri": "https://oauth.example/token",
}


def secret(fields: object) -> str:
    return base64.b64encode(orjson.dumps(fields)).decode()


def decoded(segment: str) -> bytes:
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


def test_path_names_project_and_location() -> None:
    call = build_request(received({"model": SLUG, "messages": []}), VENDOR_C, "ya29.token")
    assert call.path == "/v1/projects/my-project/locations/eu-west1/endpoints/openapi/chat/completions"
    assert call.headers["authorization"] == "Bearer ya29.token"
    assert orjson.loads(bytes(call.body))["model"] == "gem-x"


def test_stored_secret_is_never_sent_as_a_token() -> None:
    with pytest.raises(UpstreamUnreachableError) as caught:
        build_request(received({"model": SLUG}), VENDOR_C, secret(FIELDS))
    assert "PRIVATE" not in str(caught.value)


def test_project_and_location_are_escaped_in_the_path() -> None:
    odd = VendorCConfig("../../admin", "x/y?z#")
    assert vendor_c.api_path(odd, "/v1/chat/completions") == (
        "/v1/projects/..%2F..%2Fadmin/locations/x%2Fy%3Fz%23/endpoints/openapi/chat/completions"
    )


@pytest.mark.parametrize(
    ("setting", "host"),
    [("https://{location}-ai.example", "https://eu-west1-ai.example"), ("http://127.0.0.1:9/", "http://127.0.0.1:9")],
)
def test_location_replaces_the_placeholder_of_the_base_url(setting: str, host: str) -> None:
    url = build_request(received({"model": SLUG}), VENDOR_C, "k").url_at(setting)
    assert url == f"{host}/v1/projects/my-project/locations/eu-west1/endpoints/openapi/chat/completions"


@pytest.mark.parametrize(
    ("location", "host"),
    [("europe-west4", "europe-west4-aiplatform.googleapis.com"), ("global", "aiplatform.googleapis.com")],
)
def test_default_base_url_is_the_vendors_host_per_location(location: str, host: str) -> None:
    required = {"TOLLGATE_INTERNAL_TOKEN": "t" * 16, "TOLLGATE_SECRET_KEY": base64.b64encode(bytes(32)).decode()}
    settings = settings_from(required | {"TOLLGATE_REDIS_URL": "redis://x"})
    target = replace(VENDOR_C, vendor_c_config=VendorCConfig("my-project", location))
    url = build_request(received({"model": SLUG}), target, "k").url_at(settings.base_urls["VENDOR_C"])
    assert url.startswith(f"https://{host}/v1/projects/my-project/locations/{location}/")


def test_assertion_is_signed_and_has_the_claims_of_rfc_7523() -> None:
    form = parse_qs(vendor_c.token_request(vendor_c.service_account(secret(FIELDS)), 1_700_000_000).decode())
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    header, claims, signature = form["assertion"][0].split(".")
    KEY.public_key().verify(decoded(signature), f"{header}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())
    assert orjson.loads(decoded(header)) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    assert orjson.loads(decoded(claims)) == {
        "iss": "bot@my-project.iam.example",
        "scope": "https://www.googleapis.com/auth/cloud-platform",
        "aud": "https://oauth.example/token",
        "iat": 1_700_000_000,
        "exp": 1_700_003_600,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%%%",
        base64.b64encode(b"not json").decode(),
        secret([]),
        secret(None),
        secret({}),
        secret(FIELDS | {"private_key": "PRIVATE STUFF"}),
        secret(FIELDS | {"private_key": 1}),
        secret(FIELDS | {"token_uri": None}),
        secret(FIELDS | {"private_key": pem(ec.generate_private_key(ec.SECP256R1()))}),
    ],
)
def test_error_for_a_bad_secret_does_not_quote_it(text: str) -> None:
    with pytest.raises(ServiceAccountError) as caught:
        vendor_c.service_account(text)
    assert "PRIVATE" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_repr_shows_neither_key_nor_token() -> None:
    assert "rsa" not in repr(vendor_c.service_account(secret(FIELDS))).lower()
    assert "hush" not in repr(vendor_c.AccessToken("hush", 1))


def test_token_endpoints_answer_is_parsed() -> None:
    token = vendor_c.access_token(b'{"access_token":"ya29.x","expires_in":3599,"token_type":"Bearer"}')
    assert (token.value, token.lifetime_s) == ("ya29.x", 3599)


NO_TOKENS = [
    b"",
    b"[]",
    b'{"error":"invalid_grant"}',
    b'{"access_token":1}',
    b'{"access_token":"a\\r\\nb"}',
    b'{"access_token":""}',
    b'{"access_token":"a","expires_in":"soon"}',
    b'{"access_token":"a","expires_in":null}',
]


@pytest.mark.parametrize("answer", NO_TOKENS)
def test_token_response_without_a_token_is_an_error(answer: bytes) -> None:
    with pytest.raises(vendor_c.TokenAnswerError):
        vendor_c.access_token(answer)
