"""docs/compatibility.md fits the locks and the catalogue of `make clients`, which writes it."""

import re

from tests.clients.catalogue import CLIENTS, PROVIDERS
from tests.clients.compare import Cell
from tests.clients.model_servers import servers_section
from tests.clients.page import PAGE, page, versions_text

TEXT = PAGE.read_text()


def test_page_has_each_client_with_its_locked_versions() -> None:
    for client in CLIENTS:
        section = TEXT.partition(f"## {client.name}\n\n")[2].partition("\n")[0]
        assert versions_text(client) in section, f"run `make clients`: {client.name} is out of date"


def test_every_row_has_a_cell_for_each_provider() -> None:
    rows = re.findall(r"^\| [^|]+ \|((?: (?:passes|translated|refused|\*\*FAILS|–)[^|]*\|)+)$", TEXT, re.MULTILINE)
    assert len(rows) > 10 * len(CLIENTS)
    assert {row.count("|") for row in rows} == {len(PROVIDERS)}


def test_notes_are_numbered_below_their_table() -> None:
    client = CLIENTS[0].name
    cells = {one.name: Cell("FAILS", "a fault") for one in PROVIDERS} | {PROVIDERS[0].name: Cell("refused", "n")}
    text = page({client: {"plain": cells}})
    assert f"| plain | refused `n` |{' **FAILS** (1) |' * (len(PROVIDERS) - 1)}" in text
    assert text.rstrip().endswith("1. a fault")


def test_page_shows_the_model_servers_that_tests_script() -> None:
    assert "\n".join(servers_section()) in TEXT, "run `make clients`"
