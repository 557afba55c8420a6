"""Header rules: which fields pass, which never do, and the form of the rate-limit fields."""

from collections.abc import Mapping

import pytest

from proxy.accounting.reservations import LimitStatus
from proxy.http_rules.headers import (
    DIRECT_FORWARDED_FIELDS,
    DIRECT_RETURNED_FIELDS,
    FORWARDED_FIELDS,
    RETURNED_FIELDS,
    answer_fields,
    duration_text,
    forwarded_headers,
    output_cap_line,
    rate_limit_lines,
    returned_headers,
)
from tests.fakes.wire import FakeIncoming


def sent_upstream(incoming: FakeIncoming, own: Mapping[str, str] | None = None) -> dict[str, str]:
    return forwarded_headers(incoming, "r-1", own or {})


def test_credentials_and_hop_by_hop_fields_do_not_go_upstream() -> None:
    incoming = FakeIncoming(
        x_api_key="k",
        cookie="c",
        proxy_authorization="p",
        connection="keep-alive, X-Hop",
        x_hop="h",
        te="trailers",
        upgrade="h2c",
        host="us",
        accept_encoding="gzip",
        x_request_metadata="{}",
        x_forwarded_for="1.2.3.4",
    )
    assert set(sent_upstream(incoming)) == {"x-request-id", "accept-encoding", "content-type"}


def test_field_that_the_caller_declares_hop_by_hop_is_dropped() -> None:
    incoming = FakeIncoming(connection="close, Traceparent", traceparent="00-a-b-01")
    assert "traceparent" not in sent_upstream(incoming)


def test_tracing_and_request_id_go_upstream_with_identity_encoding() -> None:
    headers = sent_upstream(FakeIncoming(traceparent="00-a-b-01", tracestate="x=1"))
    assert headers["traceparent"] == "00-a-b-01"
    assert headers["tracestate"] == "x=1"
    assert headers["x-request-id"] == "r-1"
    assert headers["accept-encoding"] == "identity"


def test_more_fields_pass_in_direct_calls_and_none_is_hop_by_hop_or_secret() -> None:
    secret = {"authorization", "x-api-key", "cookie", "proxy-authorization", "set-cookie", "location", "host"}
    hop_by_hop = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length"}
    for direct, usual in ((DIRECT_FORWARDED_FIELDS, FORWARDED_FIELDS), (DIRECT_RETURNED_FIELDS, RETURNED_FIELDS)):
        assert set(usual) < set(direct)
        assert not set(direct) & (secret | hop_by_hop)


def test_dialects_fields_replace_the_callers() -> None:
    headers = sent_upstream(FakeIncoming(content_type="text/plain"), {"content-type": "application/json"})
    assert headers["content-type"] == "application/json"


def test_only_allowed_fields_of_an_answer_pass() -> None:
    upstream = [
        ("content-type", "text/event-stream"),
        ("x-ratelimit-limit-requests", "9"),
        ("set-cookie", "a=b"),
        ("server", "secret-host"),
        ("location", "https://secret-host/"),
        ("content-length", "12"),
        ("retry-after", "7"),
        ("connection", "cache-control"),
        ("cache-control", "no-cache"),
    ]
    assert returned_headers(upstream) == (("content-type", "text/event-stream"), ("retry-after", "7"))


@pytest.mark.parametrize(
    ("upstream", "content_type", "encoded"),
    [
        ([], "", False),
        ([("content-type", "a/b"), ("content-type", "c/d")], "a/b", False),
        ([("content-encoding", "identity"), ("content-type", "a/b")], "a/b", False),
        ([("content-encoding", "gzip"), ("content-encoding", "identity")], "", True),
        ([("content-encoding", "identity"), ("content-encoding", "br")], "", True),
        ([("connection", "content-type"), ("content-type", "a/b")], "a/b", False),
    ],
)
@pytest.mark.parametrize("fields", [RETURNED_FIELDS, DIRECT_RETURNED_FIELDS, frozenset[str]()])
def test_fields_of_an_answer_say_type_and_coding_whichever_pass(
    upstream: list[tuple[str, str]], content_type: str, encoded: bool, fields: frozenset[str]
) -> None:
    dropped = {value for name, value in upstream if name == "connection"}
    passing = tuple(field for field in upstream if field[0] in fields - dropped)
    longest = max((len(value) for _, value in passing), default=0)
    assert answer_fields(upstream, fields) == (content_type, encoded, passing, (), longest)


def test_lowered_output_cap_is_a_line_of_its_own() -> None:
    assert output_cap_line(50) == "x-tollgate-output-cap: 50\r\n"


def test_rate_limit_fields_never_show_a_negative_remainder() -> None:
    requests = (
        "x-ratelimit-limit-requests: 10\r\nx-ratelimit-remaining-requests: 3\r\nx-ratelimit-reset-requests: 1.5s\r\n"
    )
    tokens = "x-ratelimit-limit-tokens: 100\r\nx-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 1m0s\r\n"
    assert rate_limit_lines(LimitStatus(10, 3, 1500), LimitStatus(100, -5, 60_000)) == requests + tokens
    assert rate_limit_lines(LimitStatus(10, 3, 1500), None) == requests
    assert rate_limit_lines(None, LimitStatus(100, -5, 60_000)) == tokens
    assert rate_limit_lines(None, None) == ""


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-1, "0ms"),
        (0, "0ms"),
        (20, "20ms"),
        (1000, "1s"),
        (59_999, "59.999s"),
        (360_000, "6m0s"),
        (86_399_001, "24h0m0s"),
    ],
)
def test_durations_have_the_vendors_form(ms: int, text: str) -> None:
    assert duration_text(ms) == text
