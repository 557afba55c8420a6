"""Writes what docs/compatibility.md says of `truss`."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.clients.catalogue import PYTHON_LOCKS, TRUSS_RESULTS
from tests.clients.original.expected import label
from tests.clients.original.section import cell
from tests.clients.original.truss_client.expected import OPEN
from tests.clients.original.truss_client.families import COMMANDS, FUNCTIONS, family_of

KINDS = {"function": "function of its remote client", "command": "command"}
HEAD = """### truss

The original's tool (truss {version}), with a remote as [the guide](original-clients.md#truss) sets it up: each function
of its remote client, and each command. The cells mean the same.
"""


def truss_section() -> Iterator[str]:
    """Yield the section's lines; none if nothing has been called."""
    if TRUSS_RESULTS.exists():
        yield from section_of(json.loads(TRUSS_RESULTS.read_text()))


def section_of(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of what is ours, and a line per family of the rest."""
    yield HEAD.format(version=truss_version())
    absent = [record for record in records if record["outcome"] == "not ours"]
    for kind, title in KINDS.items():
        yield f"| {title} | |\n|---|---|"
        for record in records:
            if record["api"] == kind and record["outcome"] != "not ours":
                method, _, case = label(record).partition(", ")
                name = f"`{method}`" + (f", {case}" if case else "")
                yield f"| {name} | {cell(record)}{_why(record)} |"
        yield ""
    yield "What the original's product has besides, and what calls nobody:\n"
    yield "| not ours | functions | commands |\n|---|---|---|"
    for family in dict.fromkeys((*FUNCTIONS, *COMMANDS)):
        counts = [
            sum(record["api"] == kind and family_of(families, record["method"]) == family for record in absent)
            for kind, families in (("function", FUNCTIONS), ("command", COMMANDS))
        ]
        yield f"| {family} | {counts[0]} | {counts[1]} |"
    yield ""


def truss_version() -> str:
    match = re.search(r"^truss==([^ \\]+)", (PYTHON_LOCKS / "truss.lock").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def _why(record: Mapping[str, Any]) -> str:
    return f": {OPEN[label(record)]}" if label(record) in OPEN else ""
