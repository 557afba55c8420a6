"""The table of upstream errors (docs/reference/inference.md#upstream-errors), row by row."""

import json
from typing import Any

import pytest

from policy.endpoints import Target
from proxy.http_rules.upstream_errors import error_for_caller, raise_target_fault, without_secrets
from proxy.refusals import BadUpstreamAnswerError, ModelRaisedError, TargetCredentialError

VENDOR = Target("VENDOR_B", secret_id="s1", target_model="m")
PLATFORM = Target("PLATFORM", model_id="m1")
NESTED = {"error": {"message": "no such model", "code": 404}}


@pytest.mark.parametrize("status", [401, 402, 403])
def test_refused_target_credential_is_the_gateways_fault(status: int) -> None:
    for provider in ("VENDOR_A", "VENDOR_B", "VENDOR_C", "VENDOR_B_COMPATIBLE", "PLATFORM_MODEL_API"):
        with pytest.raises(TargetCredentialError):
            raise_target_fault(status, Target(provider, secret_id="s1"))
    raise_target_fault(status, PLATFORM)


@pytest.mark.parametrize("status", [100, 199, 300, 302, 307, 399, 600, 999])
def test_status_that_is_no_error_is_a_bad_gateway(status: int) -> None:
    with pytest.raises(BadUpstreamAnswerError):
        raise_target_fault(status, PLATFORM)


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 429, 500, 502, 503, 504, 529])
@pytest.mark.parametrize("target", [VENDOR, PLATFORM], ids=["vendor", "platform"])
def test_error_object_passes_unchanged_with_its_status(status: int, target: Target) -> None:
    raw = b'{ "error" : {"message":"no","code":7} , "x":1}'
    answered = error_for_caller(status, [], raw, target)
    assert (answered.status, answered.final) == (status, raw)


@pytest.mark.parametrize("raw", [b"<html>nope</html>", b"[1]", b'{"detail":"nope"}', b"\xff nope"])
def test_any_other_body_becomes_a_flat_error(raw: bytes) -> None:
    answered = error_for_caller(503, [("content-type", "text/html")], raw, VENDOR)
    assert json.loads(answered.final) == {"error": raw.decode("utf-8", "replace")}
    assert dict(answered.headers)["content-type"] == "application/json"


@pytest.mark.parametrize("raw", [b"", b" \r\n"])
def test_empty_body_gets_a_message_and_an_error_code(raw: bytes) -> None:
    body: Any = json.loads(error_for_caller(404, [], raw, VENDOR).final)
    assert set(body) == {"error", "error_code"}


def test_empty_500_of_a_platform_model_means_that_its_code_raised() -> None:
    with pytest.raises(ModelRaisedError):
        error_for_caller(500, [], b"", PLATFORM)
    assert error_for_caller(500, [], b"", VENDOR).status == 500
    assert error_for_caller(500, [], json.dumps(NESTED).encode(), PLATFORM).final == json.dumps(NESTED).encode()


def test_529_always_has_retry_after() -> None:
    assert ("retry-after", "9") in list(error_for_caller(529, [("retry-after", "9")], b"", VENDOR).headers)
    assert ("retry-after", "1") in list(error_for_caller(529, [], b"", VENDOR).headers)


def test_credential_is_masked_in_the_error() -> None:
    assert without_secrets(b'{"error":"bad key sk-123"}', "sk-123", None, "") == b'{"error":"bad key [hidden]"}'
