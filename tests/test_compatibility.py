"""docs/compatibility.md fits the locks and the catalogue of `make clients`, which writes it."""

import re

from tests.clients.catalogue import CLIENTS, PROVIDERS
from tests.clients.compare import Cell
from tests.clients.model_servers import servers_section
from tests.clients.original.expected import OPEN, REFUSED
from tests.clients.original.families import FAMILIES
from tests.clients.original.section import section_of
from tests.clients.page import PAGE, page, versions_text

TEXT = PAGE.read_text()


def test_page_has_each_client_with_its_locked_versions() -> None:
    for client in CLIENTS:
        section = TEXT.partition(f"## {client.name}\n\n")[2].partition("\n")[0]
        assert versions_text(client) in section, f"run `make clients`: {client.name} is out of date"


def test_every_row_has_a_cell_for_each_provider() -> None:
    by_provider = TEXT.partition("## The original's clients")[0]
    cells = r"^\| [^|]+ \|((?: (?:passes|translated|refused|\*\*FAILS|–)[^|]*\|)+)$"
    rows = re.findall(cells, by_provider, re.MULTILINE)
    assert len(rows) > 10 * len(CLIENTS)
    assert {row.count("|") for row in rows} == {len(PROVIDERS)}


def test_notes_are_numbered_below_their_table() -> None:
    client = CLIENTS[0].name
    cells = {one.name: Cell("FAILS", "a fault") for one in PROVIDERS} | {PROVIDERS[0].name: Cell("refused", "n")}
    text = page({client: {"plain": cells}})
    assert f"| plain | refused `n` |{' **FAILS** (1) |' * (len(PROVIDERS) - 1)}" in text
    assert "|\n\n1. a fault\n" in text


def test_page_shows_the_model_servers_that_tests_script() -> None:
    assert "\n".join(servers_section()) in TEXT, "run `make clients`"


def test_page_shows_the_locked_sdk_of_the_original_and_what_it_cannot_do() -> None:
    head = "\n".join(section_of({})).partition("| management method")[0]
    section = TEXT.partition(head)[2]
    assert section, "run `make clients`"
    for name in OPEN:
        assert f"| `{name}` | **fails**" in section
    for name, cause in REFUSED.items():
        method, _, case = name.partition(", ")
        row = section.partition(f"| `{method}`{', ' * bool(case)}{case} | ")[2].partition("\n")[0]
        assert cause in row, name
    assert all(f"| {family} | " in section for family in FAMILIES)
