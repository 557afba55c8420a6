"""The journeys' fixtures that the cases use too, and what the cases tell docs/compatibility.md."""

import json

import pytest

from tests.clients.catalogue import LLAMA_CPP_RESULTS
from tests.journeys.conftest import numbers, session

__all__ = ["numbers", "session"]
_OUTCOMES: dict[str, str] = {}
"""The outcome by test: `passed`, `failed` or `skipped`."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _OUTCOMES[report.nodeid] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the outcomes by case and target."""
    results: dict[str, dict[str, list[str]]] = {}
    for item in session.items:
        if isinstance(item, pytest.Function) and item.nodeid in _OUTCOMES:
            case = item.originalname.removeprefix("test_").replace("_", " ")
            target = item.callspec.params["target"]
            results.setdefault(case, {}).setdefault(str(target), []).append(_OUTCOMES[item.nodeid])
    LLAMA_CPP_RESULTS.write_text(json.dumps(results, indent=1))
