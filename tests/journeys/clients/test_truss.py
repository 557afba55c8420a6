"""The original's tool `truss` against a product: each function of its remote client works, is refused or is not ours.

`make clients` does the same with its other commands too, and writes docs/compatibility.md.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.clients.original.expected import surprises
from tests.clients.original.truss_client.expected import OPEN, REFUSED
from tests.clients.original.truss_client.run import PYTHON, outcomes
from tests.clients.original.truss_client.section import section_of


@pytest.mark.skipif(not PYTHON.exists(), reason="make .clients/truss/.installed")
def test_truss_trains_here(tmp_path: Path) -> None:
    records = outcomes(tmp_path, ("functions", "push"))

    assert surprises(records, OPEN, REFUSED) == []
    assert {record["method"] for record in records if record["api"] == "command"} == {"train push", "train download"}


def test_section_of_the_page_shows_each_outcome() -> None:
    records = [record("function", "get_teams", "works")]
    records += [record("function", "get_chains", "not ours"), record("command", "whoami", "refused", "no | question")]
    records += [
        record("command", "train metrics", "fails", "no such path"),
        record("command", "chains push", "not ours"),
    ]

    text = "\n".join(section_of(records))

    assert "| `get_teams` | works |" in text
    assert "| `whoami` | refused `no \\| question` |" in text
    assert "| `train metrics` | **fails** `no such path`" in text
    assert "| chains | 1 | 1 |" in text


def record(kind: str, method: str, outcome: str, text: str = "") -> dict[str, Any]:
    shared = {"case": "", "client": "truss", "status": None}
    return shared | {"api": kind, "method": method, "outcome": outcome, "text": text}
