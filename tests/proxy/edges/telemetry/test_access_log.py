"""The access log: one JSON object per line, times in milliseconds, written in a thread that blocks no request."""

import json
import os
import threading
from dataclasses import fields, replace
from typing import Any

import pytest

from policy.billing import Tokens
from proxy.accounting.metering import Bill
from proxy.accounting.request_report import CallLabels, RequestReport
from proxy.answers import EndCause, RefusingLimit
from proxy.edges.telemetry import access_log
from proxy.edges.telemetry.access_log import AccessLogWriter, lines_of

LABELS = frozenset(field.name for field in fields(CallLabels) if field.init)


def record(**changes: Any) -> RequestReport:
    members: dict[str, Any] = {
        "ended_at_ms": 1_700_000_000_123,
        "request_id": "r-1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "end_cause": None,
        "workspace_id": "w1",
        "external_entity_id": "acme",
        "group_id": "g1",
        "key_prefix": "tg_abc",
        "slug": "acme/chat",
        "request_bytes": 10,
        "response_bytes": 20,
        "bill": Bill(Tokens(input=3, output=2, cached_input=1)),
        "event_key": "k-1",
        "duration_s": 0.5,
        "ours_s": 0.001,
        "upstream_s": 0.499,
        "first_byte_s": 0.2,
    } | changes
    labels = CallLabels(**{name: members.pop(name) for name in LABELS & members.keys()})
    return RequestReport(labels=labels, **members)


def test_line_of_a_direct_call_names_the_model() -> None:
    line = json.loads(lines_of([record(slug="", group_id="", bill=None, model_id="mdl_1")]))
    assert line["model_id"] == "mdl_1"
    assert not {"slug", "group", "input_tokens"} & set(line)


def test_line_has_every_known_field_of_a_call() -> None:
    assert json.loads(lines_of([record()])) == {
        "time": "2023-11-14T22:13:20.123Z",
        "message": "request",
        "request_id": "r-1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "workspace": "w1",
        "group": "g1",
        "key_prefix": "tg_abc",
        "slug": "acme/chat",
        "request_bytes": 10,
        "response_bytes": 20,
        "total_ms": 500.0,
        "ours_ms": 1.0,
        "upstream_ms": 499.0,
        "first_byte_ms": 200.0,
        "input_tokens": 3,
        "output_tokens": 2,
        "cached_input_tokens": 1,
    }


def test_closed_connection_has_the_documented_message() -> None:
    assert json.loads(lines_of([record(status=499)]))["message"] == "Client closed connection"


def test_unknown_fields_are_left_out_and_any_path_fits_one_short_line() -> None:
    line = lines_of([record(slug="", bill=None, first_byte_s=None, path="/\udcff\n" + "x" * 9000)])
    assert line.count(b"\n") == 1
    assert len(line) < 1000
    assert not {"slug", "input_tokens", "first_byte_ms"} & json.loads(line).keys()


def test_texts_of_callers_are_escaped() -> None:
    names = {"request_id": 'r"\\', "slug": 'a/"b\\', "path": '/"\\%d%b'}
    line = json.loads(lines_of([record(end_cause=EndCause('c"'), **names)]))
    assert {name: line[name] for name in names} == names
    assert line["cause"] == 'c"'


def test_calls_with_the_same_labels_have_lines_of_their_own() -> None:
    first = record()
    other = record(slug="acme/other")
    second = replace(first, status=429, end_cause=EndCause("limited"), bill=None, first_byte_s=None, request_id="r-2")
    lines = [json.loads(line) for line in lines_of([first, second, other]).splitlines()]
    summaries = [(line["request_id"], line["status"], line["slug"], line.get("cause")) for line in lines]
    assert summaries == [
        ("r-1", 200, "acme/chat", None),
        ("r-2", 429, "acme/chat", "limited"),
        ("r-1", 200, "acme/other", None),
    ]


def test_line_of_a_refusal_names_the_limit() -> None:
    limit = RefusingLimit("grp_1", "TOKEN", "DAY", "1000")
    line = json.loads(lines_of([record(status=429, bill=None, end_cause=EndCause("limit", limit))]))
    members = {name: line[name] for name in line if name.startswith(("cause", "limit"))}
    assert members == {
        "cause": "limit",
        "limit_group": "grp_1",
        "limit_type": "TOKEN",
        "limit_unit": "DAY",
        "limit_threshold": "1000",
    }


def test_line_of_a_refusal_by_a_balance_has_neither_unit_nor_threshold() -> None:
    limit = RefusingLimit("grp_1", "BALANCE", "", "")
    line = json.loads(lines_of([record(status=402, end_cause=EndCause("balance", limit))]))
    assert {name for name in line if name.startswith("limit")} == {"limit_group", "limit_type"}


def test_close_writes_all_lines() -> None:
    reading, writing = os.pipe()
    log = AccessLogWriter(writing)
    log.start()
    for number in range(100):
        log.write([record(request_id=str(number))])
    log.close()
    os.close(writing)
    with os.fdopen(reading) as lines:
        assert [json.loads(line)["request_id"] for line in lines] == [str(number) for number in range(100)]


def test_blocked_reader_loses_counted_lines_and_blocks_no_request() -> None:
    reading, writing = os.pipe()
    log = AccessLogWriter(writing, max_pending=10)
    log.start()
    for _ in range(3000):  # more than a pipe and the queue hold; `write` would block here if it waited
        log.write([record()])
    output: list[bytes] = []

    def read_all() -> None:
        with os.fdopen(reading, "rb") as lines:
            output.extend(lines)

    reader = threading.Thread(target=read_all)
    reader.start()
    log.close()
    os.close(writing)
    reader.join()
    lost_count = sum(json.loads(line).get("lines", 0) for line in output)
    assert lost_count > 0
    assert lost_count + sum(1 for line in output if b"r-1" in line) == 3000


def test_lines_that_the_descriptor_refuses_are_counted_until_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    def refuse(fd: int, data: bytes) -> None:
        if len(writes) < 3:
            writes.append(b"")
            raise OSError
        writes.append(data)

    monkeypatch.setattr(access_log, "_write_all", refuse)
    log = AccessLogWriter(-1)
    for count in (2, 1, 3, 1):
        log.write([record()] * count)
        log._drain()
    *lines, report = map(json.loads, writes[-1].splitlines())
    assert (len(lines), report["lines"]) == (1, 6)
    log._drain()
    assert writes[-1] == b""


def test_closed_descriptor_raises_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    log = AccessLogWriter(writing)
    log.start()
    log.write([record()])
    log.close()
    os.close(writing)
    assert not log._thread.is_alive()
