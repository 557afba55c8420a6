"""Rules for all tests: journeys run first, and with TOLLGATE_NO_SKIPS=1, as in CI, a skipped test fails."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from proxy.edges.journal.segments import memory_directories, remove
from proxy.settings import JOURNAL_MEMORY_DIR

# An example's duration depends on the machine's load, so it must not fail a test.
settings.register_profile("tollgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tollgate")

ROOT = Path(__file__).parent
WAITING = ("journeys", "contracts", "control")
"""The folders whose tests wait for other processes, the longest waits first."""

signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in a shell's background ignores it, and so do children

gc.disable()  # while tests are collected: what that builds stays, and to look for garbage in it takes seconds


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but only of the tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_journal_stays_in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give back the memory of journals whose workers this session's tests have killed."""
    yield
    for directory, journal in memory_directories(Path(JOURNAL_MEMORY_DIR)):
        if journal.is_relative_to(tmp_path_factory.getbasetemp()):
            remove(directory)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that wait: a file that waits for minutes must not be the last one, with idle cores."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(ROOT).parts[0]
    return WAITING.index(folder) if folder in WAITING else len(WAITING)


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
