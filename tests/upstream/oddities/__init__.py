"""The table of odd answers: what a server sends, what each caller must see of it, and what is billed.

A new oddity is one row in the file of its kind, and a kind is one file whose `ROWS` is listed here.
`tests/contracts/http/test_oddities.py` runs each row over real sockets, once for each caller that it names.
"""

from tests.upstream.oddities import (
    details,
    encodings,
    endings,
    failures,
    fidelity,
    finish_reasons,
    finishes,
    known_servers,
    labels,
    left_out,
    missing_paths,
    refused_additions,
    reports,
)
from tests.upstream.oddities.row import Oddity

ODDITIES: tuple[Oddity, ...] = (
    *details.ROWS,
    *encodings.ROWS,
    *endings.ROWS,
    *failures.ROWS,
    *fidelity.ROWS,
    *finish_reasons.ROWS,
    *finishes.ROWS,
    *known_servers.ROWS,
    *left_out.ROWS,
    *labels.ROWS,
    *missing_paths.ROWS,
    *refused_additions.ROWS,
    *reports.ROWS,
)
