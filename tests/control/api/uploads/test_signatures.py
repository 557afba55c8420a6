"""Signatures against the examples that AWS publishes for S3, and what a changed request comes to."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from control.api.uploads.s3_errors import S3Error
from control.api.uploads.signatures import Signature, SignedRequest, canonical_query, parameters

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
AT = datetime(2013, 5, 24, tzinfo=UTC)
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
NAMES = "host;x-amz-content-sha256;x-amz-date"
HOST = ("host", "examplebucket.s3.amazonaws.com")
DATE = ("x-amz-date", "20130524T000000Z")


def request(method: str, target: str, digest: str, names: str = NAMES, *more: tuple[str, str]) -> SignedRequest:
    scope = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256 Credential={scope},SignedHeaders={names},Signature={digest}"
    headers = [HOST, DATE, ("authorization", text), *more]
    if not any(name == "x-amz-content-sha256" for name, _ in more):
        headers.append(("x-amz-content-sha256", EMPTY))
    return SignedRequest(method, target, headers)


PUT = request(
    "PUT",
    "/test%24file.text",
    "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
    ("date", "Fri, 24 May 2013 00:00:00 GMT"),
    ("x-amz-content-sha256", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
    ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
)
LIFECYCLE = request("GET", "/?lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")
LIST = request("GET", "/?max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")


@pytest.mark.parametrize("example", [PUT, LIFECYCLE, LIST], ids=["put", "lifecycle", "list"])
def test_published_example_is_right(example: SignedRequest) -> None:
    Signature.of(example).check(example, SECRET, AT)


def changed_header(name: str, value: str) -> SignedRequest:
    return replace(PUT, headers=[(one, value if one == name else present) for one, present in PUT.headers])


@pytest.mark.parametrize(
    "changed",
    [
        replace(PUT, method="POST"),
        replace(PUT, target="/other"),
        replace(PUT, target="/test%24file.text?x=1"),
        changed_header("host", "other.example"),
        changed_header("x-amz-content-sha256", EMPTY),
        changed_header("x-amz-storage-class", "STANDARD"),
    ],
    ids=["method", "path", "query", "host", "payload", "header"],
)
def test_changed_request_does_not_match(changed: SignedRequest) -> None:
    with pytest.raises(S3Error) as refusal:
        Signature.of(changed).check(changed, SECRET, AT)
    assert (refusal.value.status, refusal.value.code) == (403, "SignatureDoesNotMatch")


def test_another_secret_does_not_match() -> None:
    with pytest.raises(S3Error, match="does not match"):
        Signature.of(PUT).check(PUT, "other", AT)


@pytest.mark.parametrize("minutes", [-16, 16])
def test_old_and_early_requests_are_refused(minutes: int) -> None:
    with pytest.raises(S3Error) as refusal:
        Signature.of(PUT).check(PUT, SECRET, AT + timedelta(minutes=minutes))
    assert refusal.value.code == "RequestTimeTooSkewed"


@pytest.mark.parametrize("more", [("x-amz-meta-a", "b"), ("x-amz-copy-source", "/a/b")])
def test_amazon_header_that_is_not_signed_is_refused(more: tuple[str, str]) -> None:
    added = replace(PUT, headers=[*PUT.headers, more])
    with pytest.raises(S3Error) as refusal:
        Signature.of(added).check(added, SECRET, AT)
    assert refusal.value.code == "AccessDenied"
    assert more[0] in refusal.value.message


OF_EC2 = f"AWS4-HMAC-SHA256 Credential=a/b/c/ec2/aws4_request, SignedHeaders=host, Signature={0:064}"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "AccessDenied"),
        ("Bearer tg_key", "InvalidRequest"),
        ("AWS4-HMAC-SHA256 nothing", "AuthorizationHeaderMalformed"),
        (OF_EC2, "AuthorizationHeaderMalformed"),
    ],
    ids=["missing", "bearer", "malformed", "another service"],
)
def test_request_that_is_not_signed_so_is_refused(text: str | None, code: str) -> None:
    headers = [HOST, DATE] if text is None else [HOST, DATE, ("authorization", text)]
    with pytest.raises(S3Error) as refusal:
        Signature.of(SignedRequest("PUT", "/", headers))
    assert refusal.value.code == code


def test_queries_are_signed_in_one_form() -> None:
    assert canonical_query("b=%7e&a&A=x/y") == "A=x%2Fy&a=&b=~"


def test_a_parameter_is_given_once() -> None:
    assert parameters("/a?uploadId=x%2B&uploads") == {"uploadId": "x+", "uploads": ""}
    with pytest.raises(S3Error):
        parameters("/a?uploadId=1&uploadId=2")
