"""Writes docs/compatibility.md from the results, and reads the clients' versions from their locks."""

import json
import re
import time
from collections.abc import Iterator

from tests.clients.catalogue import AGENTS, CLIENTS, PROVIDERS, PYTHON_LOCKS, ROOT, TYPESCRIPT, Client
from tests.clients.compare import Cell
from tests.clients.llama_cpp.section import section
from tests.clients.model_servers import servers_section
from tests.clients.original.section import original_section
from tests.clients.original.truss_client.section import truss_section

PAGE = ROOT / "docs/compatibility.md"
NPM_LOCKS = {"typescript": TYPESCRIPT, "agents": AGENTS}
Results = dict[str, dict[str, dict[str, Cell]]]
"""The cells by client, case and provider."""

HEAD = """# Compatibility

`make clients` wrote this page on {date}. It runs each client below as a process of its own, through one slug that an
operator re-points at each provider in turn, and compares what the client saw with what it sees from a vendor of its own
dialect with the same content: parsed objects, the sequence of events, error classes, retries, and the billed tokens.
The vendors are scripted. Their answers have the shapes of the vendors' published SDK types, and they refuse what the
real ones refuse.

| cell | meaning |
|---|---|
| passes | equal; the target speaks the client's dialect, and bytes pass through |
| translated | equal; the target speaks another dialect |
| refused | a 400 before the call, which names the field: the target's dialect has nothing like it |
| **FAILS** | something differs; the note says what |

A number refers to the notes below the table. [Translation](reference/inference.md#translation) has the rules.
"""


def versions(client: Client) -> dict[str, str]:
    """The version of each of the client's packages, as locked."""
    if client.environment in NPM_LOCKS:
        packages = json.loads((NPM_LOCKS[client.environment] / "package-lock.json").read_text())["packages"]
        return {name: packages[f"node_modules/{name}"]["version"] for name in client.packages}
    lock = (PYTHON_LOCKS / f"{client.environment}.lock").read_text()
    by_name = dict(re.findall(r"^([a-z0-9-]+)==([^ \\;]+)", lock, re.MULTILINE))
    return {name: by_name[name] for name in client.packages}


def versions_text(client: Client) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions(client).items())


def page(results: Results) -> str:
    parts = [HEAD.format(date=time.strftime("%Y-%m-%d", time.gmtime())), *_providers(), *servers_section()]
    parts += _clients(results)
    for client in CLIENTS:
        if client.name in results:
            parts += _client(client, results[client.name])
    parts += section()
    parts += original_section()
    parts += truss_section()
    return "\n".join(parts) + "\n"


def _providers() -> Iterator[str]:
    yield "## Providers\n"
    yield "| column | provider | its vendor |\n|---|---|---|"
    for provider in PROVIDERS:
        yield f"| {provider.name} | `{provider.provider}` | {provider.note} |"
    yield ""


def _clients(results: Results) -> Iterator[str]:
    yield "## Clients\n"
    yield "Cases that hold (passed or translated) of those that ran; the rest is refused, or fails.\n"
    names = " | ".join(provider.name for provider in PROVIDERS)
    yield f"| client | version | path | {names} |\n|{'---|' * (3 + len(PROVIDERS))}"
    for client in CLIENTS:
        if client.name in results:
            counts = " | ".join(_count(results[client.name], provider.name) for provider in PROVIDERS)
            name = f"[{client.title}](#{client.name.replace('.', '')})"
            yield f"| {name} | {versions_text(client)} | `/v1{client.dialect.path}` | {counts} |"
    yield ""


def _count(cases: dict[str, dict[str, Cell]], provider: str) -> str:
    cells = [by_provider[provider] for by_provider in cases.values() if provider in by_provider]
    if not cells:
        return "–"
    hold = sum(cell.verdict in ("passes", "translated") for cell in cells)
    fail = sum(cell.verdict == "FAILS" for cell in cells)
    return f"{hold} of {len(cells)}" + (f", **{fail} fail**" if fail else "")


def _client(client: Client, cases: dict[str, dict[str, Cell]]) -> Iterator[str]:
    notes: list[str] = []
    names = " | ".join(provider.name for provider in PROVIDERS)
    yield f"## {client.name}\n"
    yield f"{client.title}, {versions_text(client)}, on `/v1{client.dialect.path}`.\n"
    yield f"| case | {names} |\n|{'---|' * (1 + len(PROVIDERS))}"
    for case, by_provider in cases.items():
        row = " | ".join(_cell(by_provider.get(provider.name), notes) for provider in PROVIDERS)
        yield f"| {case} | {row} |"
    yield ""
    yield from (f"{number}. {note}" for number, note in enumerate(notes, 1))
    yield ""


def _cell(cell: Cell | None, notes: list[str]) -> str:
    if cell is None:
        return "–"
    if cell.verdict == "refused":
        return f"refused `{cell.detail}`"
    name = f"**{cell.verdict}**" if cell.verdict == "FAILS" else cell.verdict
    if not cell.detail:
        return name
    note = cell.detail.replace("|", "\\|").replace("<", "&lt;")
    if note not in notes:
        notes.append(note)
    return f"{name} ({notes.index(note) + 1})"
