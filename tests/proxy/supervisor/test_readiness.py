"""Readiness: what is logged of it, and how often."""

import pytest

from proxy.supervisor.readiness import OK, Finding, Readiness, Report


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    readiness = Readiness({})
    caplog.set_level("INFO")
    away, other = Finding(fault="Redis is away. Start it"), Finding(degraded="no subscription")
    for finding in (OK, away, away, away, other, other, OK, OK):
        readiness.log_changes(Report({"redis": finding}))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "not ready: redis: Redis is away. Start it"),
        ("WARNING", "degraded: redis: no subscription"),
        ("INFO", "redis is well again"),
    ]


def test_what_was_announced_is_not_logged_as_trouble(caplog: pytest.LogCaptureFixture) -> None:
    readiness, draining = Readiness({}), Finding(fault="draining")
    readiness.announced("workers", draining)
    readiness.log_changes(Report({"workers": draining, "redis": OK}))
    assert not caplog.records
