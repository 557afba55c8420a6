"""Rules for all tests: with TOLLGATE_NO_SKIPS=1, as in CI, a skipped test fails."""

import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# An example's duration depends on the machine's load, so it must not fail a test.
settings.register_profile("tollgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tollgate")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TOLLGATE_NO_SKIPS") == "1":
        report.outcome = "failed"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"skipped, and here nothing may be skipped: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself during collection."""
    report = yield
    if report.skipped and os.environ.get("TOLLGATE_NO_SKIPS") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped, and here nothing may be skipped: {report.longrepr}"
    return report
