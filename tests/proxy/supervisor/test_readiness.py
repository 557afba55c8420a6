"""Readiness logs each change once."""

import pytest

from proxy.records.supervisor.findings import OK, Finding, Report
from proxy.supervisor.readiness import Readiness


def test_each_change_of_a_check_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    readiness = Readiness({})
    caplog.set_level("INFO")
    away = Finding(fault="Redis is away. Start it")
    other = Finding(degraded="no subscription")
    for finding in (OK, away, away, away, other, other, OK, OK):
        readiness.log_changes(Report({"redis": finding}))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "Not ready: redis: Redis is away. Start it"),
        ("WARNING", "Degraded: redis: no subscription"),
        ("INFO", "Readiness check redis has recovered."),
    ]


def test_finding_marked_as_logged_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    readiness = Readiness({})
    draining = Finding(fault="draining")
    readiness.mark_logged("workers", draining)
    readiness.log_changes(Report({"workers": draining, "redis": OK}))
    assert not caplog.records


def test_note_is_shown_but_a_change_of_it_alone_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    readiness = Readiness({})
    for rows in (1, 2, 3):
        report = Report({"policy": Finding(fault="none yet", note=f"{rows} rows so far")})
        readiness.log_changes(report)
    assert report.to_wire()["checks"] == {"policy": "none yet (3 rows so far)"}
    assert [record.getMessage() for record in caplog.records] == ["Not ready: policy: none yet"]
