"""Every member of a log line is in docs/reference/logs.md, and that page names no other."""

import ast
import json
import logging
import re
import sys
from pathlib import Path

from policy.billing import Tokens
from proxy.accounting.metering import Bill
from proxy.accounting.request_report import CallLabels, RequestReport
from proxy.answers import EndCause, RefusingLimit
from proxy.edges.telemetry.access_log import lines_of
from runtime.log_schema import log_line

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("policy", "proxy", "control", "launcher", "commands", "trainer", "runtime")
ADDS_MEMBERS = ("control/api/protocol/observability.py", "runtime/tracing/current.py")
"""The only files that put members of their own into lines."""


def documented_members() -> set[str]:
    text = (ROOT / "docs/reference/logs.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)} | {"lines"}


def members_of_an_error() -> set[str]:
    try:
        raise ValueError
    except ValueError:
        record = logging.LogRecord("name", logging.ERROR, "", 0, "message", (), sys.exc_info())
    return set(json.loads(log_line(record)))


def members_of_an_access_log_line() -> set[str]:
    report = RequestReport(
        labels=CallLabels(
            method="POST",
            path="/",
            workspace_id="w",
            external_entity_id="e",
            group_id="g",
            key_prefix="k",
            slug="s",
            model_id="m",
        ),
        ended_at_ms=1,
        request_id="r",
        status=200,
        end_cause=EndCause("cause", RefusingLimit("g", "REQUEST", "DAY", "1")),
        request_bytes=1,
        response_bytes=1,
        bill=Bill(Tokens(input=1, output=1, cached_input=1)),
        event_key="e",
        duration_s=1.0,
        ours_s=1.0,
        upstream_s=1.0,
        first_byte_s=1.0,
        trace_id="t",
        span_id="s",
    )
    return set(json.loads(lines_of([report])))


def members_of_controls_request_lines() -> set[str]:
    tree = ast.parse((ROOT / ADDS_MEMBERS[0]).read_text())
    return {
        str(key.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    } - {"Content-Type"}


def test_documented_members_are_those_of_the_code() -> None:
    members = members_of_an_error() | members_of_an_access_log_line() | members_of_controls_request_lines()
    assert members | {"lines"} == documented_members()
    assert '"lines":%d' in (ROOT / "proxy/edges/telemetry/access_log.py").read_text()


def test_no_other_file_adds_members() -> None:
    """`log_line` takes further members from the record's attribute `FIELDS` alone."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    adding = {
        str(file.relative_to(ROOT)) for file in files if re.search(r"log_schema import.*FIELDS", file.read_text())
    }
    assert adding == set(ADDS_MEMBERS)
