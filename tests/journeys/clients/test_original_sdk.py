"""The original's stock SDK against a product: every method of it works, is refused with its reason, or is not ours.

`make clients` does the same with the asynchronous client too, and writes docs/compatibility.md.
"""

from pathlib import Path

import pytest

from tests.clients.original.expected import OPEN, REFUSED, label, surprises
from tests.clients.original.run import PYTHON, outcomes


@pytest.mark.skipif(not PYTHON.exists(), reason="make .clients/baseten/.installed")
def test_every_method_of_the_originals_sdk_is_served_refused_or_not_ours(tmp_path: Path) -> None:
    records = outcomes(tmp_path, ("sync",))
    labels = {label(record) for record in records}

    assert surprises(records) == []
    assert {*OPEN, *REFUSED} <= labels
    assert {record["api"] for record in records} == {"management", "inference"}
