"""Writes what docs/compatibility.md says of the original's SDK."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.clients.catalogue import ORIGINAL_RESULTS, PYTHON_LOCKS
from tests.clients.original.families import FAMILIES, family_of

KINDS = ("sync", "async")
Row = dict[str, dict[str, str | int | None]]
"""The outcome of a method, by the kind of client."""
HEAD = """## The original's clients

The original's stock SDK (baseten {version}), with its base URL set to control, and for inference to
`…/models/{{model_id}}` of the proxy: each method of its generated API, by its synchronous and its asynchronous client.

| cell | meaning |
|---|---|
| works | the SDK reads the answer, and what it says is true |
| refused | a 4xx that says what is wrong |
| **fails** | anything else |
"""


def original_section() -> Iterator[str]:
    """Yield the section's lines; none if the methods have not been called."""
    if not ORIGINAL_RESULTS.exists():
        return
    rows: dict[tuple[str, str], Row] = {}
    for one in json.loads(ORIGINAL_RESULTS.read_text()):
        label = f"`{one['method']}`" + (f", {one['case']}" if one["case"] else "")
        rows.setdefault((one["api"], label), {})[one["client"]] = one
    yield from section_of(rows)


def sdk_version() -> str:
    match = re.search(r"^baseten==([^ \\]+)", (PYTHON_LOCKS / "baseten.lock").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def section_of(rows: dict[tuple[str, str], Row]) -> Iterator[str]:
    """Yield the table of the methods that are called, and a line per family of the others."""
    yield HEAD.format(version=sdk_version())
    absent = [label for (_, label), row in rows.items() if any(one["outcome"] == "not ours" for one in row.values())]
    for api in ("management", "inference"):
        own = {label: row for (name, label), row in rows.items() if name == api and label not in absent}
        yield f"| {api} method | {' | '.join(KINDS)} |\n|{'---|' * (1 + len(KINDS))}"
        for label, row in own.items():
            yield f"| {label} | {' | '.join(cell(row.get(kind)) for kind in KINDS)} |"
        yield ""
    yield "What the original's product has besides: each of these methods is answered 404.\n"
    yield "| not ours | methods |\n|---|---|"
    families = [family_of(label.strip("`")) for label in absent]
    for family in FAMILIES:
        yield f"| {family} | {families.count(family)} |"
    yield ""


def cell(one: Mapping[str, Any] | None) -> str:
    """Return the text of an outcome in a table; a dash without one."""
    if one is None:
        return "–"
    cause = str(one["text"]).replace("|", "\\|").replace("`", "'")
    if one["outcome"] == "refused":
        return f"refused `{cause}`"
    if one["outcome"] == "works":
        return "works"
    status = f"{one['status']} " if one["status"] else ""
    return f"**fails** `{status}{cause}`"
