"""Writes what docs/compatibility.md says of the real llama.cpp server."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.clients.catalogue import LLAMA_CPP_RESULTS

SOURCES = Path(__file__).with_name("sources.lock")
COLUMNS = {
    "PLATFORM": "PLATFORM",
    "VENDOR_A": "VENDOR_A (Messages)",
    "VENDOR_B": "VENDOR_B",
    "chat": "only Chat Completions",
    "responses": "only Responses",
}


def section() -> Iterator[str]:
    """Yield the section's lines; none if the cases have not run."""
    if not LLAMA_CPP_RESULTS.exists():
        return
    results: dict[str, dict[str, list[str]]] = json.loads(LLAMA_CPP_RESULTS.read_text())
    match = re.search(r"==(\S+)", SOURCES.read_text())
    assert match is not None
    yield "## llama.cpp\n"
    yield f"A real server of llama.cpp (the sources are those of llama-cpp-python {match[1]}) with a tiny random model,"
    yield "asked by the stock SDKs on all three paths, whole and streamed. Texts, thoughts and tokens equal those of a"
    yield "direct call, and the bill equals the server's usage.\n"
    yield f"| case | {' | '.join(COLUMNS.values())} |\n|{'---|' * (1 + len(COLUMNS))}"
    for case, targets in results.items():
        yield f"| {case} | {' | '.join(_count(targets.get(target, [])) for target in COLUMNS)} |"
    yield ""


def _count(outcomes: list[str]) -> str:
    ran = [outcome for outcome in outcomes if outcome != "skipped"]
    failed = ran.count("failed")
    return (f"{len(ran) - failed} of {len(ran)}" + (f", **{failed} fail**" if failed else "")) if ran else "–"
