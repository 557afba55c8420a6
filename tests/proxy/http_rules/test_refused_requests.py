"""A missing path is told from a missing model in every common form, and a refused member by its name."""

from typing import Any

import orjson
import pytest

from proxy.http_rules.refused_requests import lacks_path, refuses_member

MISSING_PATHS: list[tuple[int, Any]] = [
    (404, b""),
    (404, b"404 page not found"),
    (404, b"<html><head><title>404 Not Found</title></head><body>No model of this site</body></html>"),
    (404, {"detail": "Not Found"}),
    (404, {"error": "Not Found"}),
    (404, {"object": "error", "message": "Not Found", "type": "NotFound", "code": 404}),
    (404, {"error": {"message": "Not Found", "type": "NotFoundError", "param": None, "code": 404}}),
    (404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}),
    (404, {"error": {"message": "Invalid URL (POST /v1/messages)", "type": "invalid_request_error", "code": None}}),
    (404, {"error": {"message": "Unknown request URL: POST /v1/responses.", "code": "unknown_url"}}),
    (404, {"error": {"message": "Gone", "code": "unknown_url"}}),
    (404, {"error": {"message": "Unrecognized request URL (POST: /v1/responses)."}}),
    (404, {"error": {"message": "Resource not found", "code": "404"}}),
    (404, {"type": "error", "error": {"type": "not_found_error", "message": "Not Found"}}),
    (404, {"error": {"message": "Unexpected endpoint or method. (POST /v1/messages)"}}),
    (404, {"error": {"message": "No static resource v1/messages."}}),
    (404, {"error": {"message": "Cannot POST /v1/responses"}}),
    (405, {"detail": "Method Not Allowed"}),
    (405, {"error": {"message": "Method Not Allowed", "type": "invalid_request_error", "code": 405}}),
    (501, b"Unsupported method ('POST')"),
    (501, {"error": {"message": "API not implemented", "type": "api_error", "code": "api_not_implemented"}}),
    (200, {"error": "Unexpected endpoint or method. (POST /v1/messages)"}),
    (200, {"error": {"message": "Invalid URL (POST /v1/messages)"}}),
    (200, {"error": {"message": "x", "code": "unknown_url"}}),
    (200, {"detail": "Not Found"}),
    (200, {"error": "Not Found"}),
    (200, {"error": {"message": "Not Found", "code": 404}}),
    (200, {"timestamp": "2026-01-01", "status": 404, "error": "Not Found", "path": "/v1/messages"}),
    (200, {"statusCode": 404, "message": "Cannot POST /v1/messages", "error": "Not Found"}),
    (200, {"code": 404, "msg": "Nothing is here", "data": None}),
    (200, {"code": "404", "message": "Nothing is here"}),
    (200, {"error": {"code": 405, "message": "x"}}),
    (200, {"success": False, "message": "no Route matched with those values"}),
    (200, b"<!DOCTYPE html><html><body>Welcome</body></html>"),
    (200, b"\xef\xbb\xbf  <html></html>"),
]
OTHERS: list[tuple[int, Any]] = [
    (404, {"error": {"message": "The model `m` does not exist", "type": "e", "code": "model_not_found"}}),
    (404, {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "param": "model"}}),
    (404, {"error": {"message": "m is not here", "type": "NotFoundError", "param": "model", "code": 404}}),
    (404, {"object": "error", "message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}),
    (404, {"type": "error", "error": {"type": "not_found_error", "message": "model: m"}}),
    (404, {"error": 'model "m" not found, try pulling it first'}),
    (404, {"error": {"message": 'model "m" not found, try pulling it first', "type": "api_error"}}),
    (404, {"error": {"message": "The API deployment for this resource does not exist", "code": "DeploymentNotFound"}}),
    (404, {"error": {"message": "No endpoints found for a/m.", "code": 404}}),
    (404, {"error": {"message": "No such File object: file-1"}}),
    (404, {"error": {"message": "gone"}}),
    (404, b"model m not found"),
    (400, {"error": {"message": "Invalid URL", "code": "unknown_url"}}),
    (422, {"detail": [{"loc": ["body", "x"]}]}),
    (429, {"error": {"message": "slow"}}),
    (500, {"error": "Not Found"}),
    (503, b"<html>busy</html>"),
    (200, {"error": {"message": "overloaded"}}),
    (200, {"error": {"message": "overloaded", "code": 503}}),
    (200, {"code": 529, "msg": "overloaded"}),
    (200, {"success": False, "message": "overloaded"}),
    (200, {"status": 500, "error": "Internal Server Error", "path": "/v1/messages"}),
    (200, {"code": 404, "msg": "model m not found"}),
    (200, {"error": {"message": "The model `m` does not exist", "code": 404}}),
    (200, {"code": 404, "message": "", "choices": [{"message": {"content": "a"}}]}),
    (200, {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}),
    (200, {"choices": [{"message": {"content": "not found"}}], "detail": "Not Found"}),
    (200, {"content": [{"type": "text", "text": "Invalid URL"}], "message": "Invalid URL"}),
    (200, {"object": "response", "output": [{}], "error": None}),
    (200, b""),
    (200, b"data: {}\n\n"),
]


def encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else orjson.dumps(body)


@pytest.mark.parametrize(("status", "body"), MISSING_PATHS)
def test_missing_path_is_recognized_in_each_form(status: int, body: Any) -> None:
    assert lacks_path(status, encoded(body))


@pytest.mark.parametrize(("status", "body"), OTHERS)
def test_no_other_answer_is_taken_for_a_missing_path(status: int, body: Any) -> None:
    assert not lacks_path(status, encoded(body))


NAMES = (b"stream_options", b"include_usage")
REFUSALS: list[tuple[int, Any]] = [
    (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs"}]}),
    (422, {"message": {"detail": [{"loc": ["body", "stream_options", "include_usage"]}]}}),
    (400, {"error": {"message": "property 'stream_options' is unsupported", "type": "invalid_request_error"}}),
    (400, {"error": {"message": "unknown", "param": "stream_options"}}),
    (400, {"error": "include_usage: unknown field"}),
    (400, b"json: unknown field stream_options"),
    (200, {"error": "unknown field stream_options"}),
]
ACCEPTED: list[tuple[int, Any]] = [
    (422, {"detail": [{"loc": ["body", "messages"]}]}),
    (400, b"bad request"),
    (500, b"stream_options"),
    (200, {"choices": [{"message": {"content": "stream_options"}}]}),
    (200, b"stream_options"),
]


@pytest.mark.parametrize(("status", "body"), REFUSALS)
def test_refused_member_is_recognized_in_each_form(status: int, body: Any) -> None:
    assert refuses_member(status, encoded(body), NAMES)


@pytest.mark.parametrize(("status", "body"), ACCEPTED)
def test_answer_that_does_not_name_the_member_does_not_refuse_it(status: int, body: Any) -> None:
    assert not refuses_member(status, encoded(body), NAMES)
