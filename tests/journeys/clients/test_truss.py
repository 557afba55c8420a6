"""The original's tool `truss` against a product: each function of its remote client works, is refused or is not ours.

`make clients` does the same with its other commands too, and writes docs/compatibility.md.
"""

from pathlib import Path

import pytest

from tests.clients.original.expected import surprises
from tests.clients.original.truss_client.expected import OPEN, REFUSED
from tests.clients.original.truss_client.run import PYTHON, outcomes


@pytest.mark.skipif(not PYTHON.exists(), reason="make .clients/truss/.installed")
def test_truss_trains_here(tmp_path: Path) -> None:
    records = outcomes(tmp_path, ("functions", "push"))

    assert surprises(records, OPEN, REFUSED) == []
    assert {record["method"] for record in records if record["api"] == "command"} == {"train push", "train download"}
