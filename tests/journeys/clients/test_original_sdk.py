"""The original's stock SDK against a product: every method of it works, is refused with its reason, or is not ours.

`make clients` does the same with the asynchronous client too, and writes docs/compatibility.md.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.clients.original.expected import OPEN, REFUSED, label, surprises
from tests.clients.original.recording import Recorder
from tests.clients.original.run import PYTHON, outcomes


@pytest.mark.skipif(not PYTHON.exists(), reason="make .clients/baseten/.installed")
def test_every_method_of_the_originals_sdk_is_served_refused_or_not_ours(tmp_path: Path) -> None:
    records = outcomes(tmp_path, ("sync",))
    labels = {label(record) for record in records}

    assert surprises(records) == []
    assert {*OPEN, *REFUSED} <= labels
    assert {record["api"] for record in records} == {"management", "inference"}


class NewerApi:
    """A generated API with a method that no step calls, and one of a family that is served after all."""

    def get_news(self) -> None: ...

    def get_volumes(self) -> None: ...


def test_method_that_is_neither_exercised_nor_listed_fails() -> None:
    with asyncio.Runner() as runner:
        recorder = Recorder("management", "sync", NewerApi(), runner)
        recorder.close("")

    assert {record.method: (record.outcome, record.text) for record in recorder.records} == {
        "get_news": ("fails", "neither exercised nor listed as not ours"),
        "get_volumes": ("fails", "answers, and is listed as volumes: exercise it"),
    }


@pytest.mark.parametrize(
    ("method", "outcome", "text", "surprise"),
    [
        ("get_secrets", "works", "", ""),
        ("get_secrets", "fails", "no such path", "get_secrets: fails 404 no such path"),
        ("get_secrets", "model", "name: missing", "get_secrets: model 404 name: missing"),
        ("get_secrets", "refused", "a reason", "REFUSED does not say so"),
        ("post_models", "refused", "source: leave it out", ""),
        ("post_models", "refused", "something else", "REFUSED does not say so"),
        ("post_models", "works", "", "remove it from REFUSED"),
        (next(iter(OPEN), "get_secrets"), "works", "", "remove it from OPEN" if OPEN else ""),
    ],
)
def test_outcome_that_is_not_expected_is_told(method: str, outcome: str, text: str, surprise: str) -> None:
    record: dict[str, Any] = {"method": method, "case": "", "client": "sync", "outcome": outcome}

    lines = surprises([record | {"status": 404, "text": text}])

    assert len(lines) == bool(surprise)
    assert surprise in "".join(lines)
