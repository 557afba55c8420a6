"""The monthly statements of all entities: a file for each in a directory, and `index.csv` that names them.

See docs/reference/usage-reports.md#statements-of-all-entities.
"""

import csv
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from commands.billing.months import StatementRequest
from commands.billing.reports import report_pages
from commands.connection import Client
from commands.errors import ManagementError
from policy.prices import rounded_text
from policy.statements.csv_text import csv_text
from policy.statements.statement import Statement, statement_text

_INDEX = "index.csv"
_PAGE_ITEMS = 500
_READABLE = 40
_HEADERS = ("entity", "file", "month", "status", "calls", "unpriced_calls", "currency", "total", "group_id")


class Directory(Protocol):
    """The directory of statements. A file has its old content or its new one, whenever the command ends."""

    def read(self, name: str) -> str | None: ...

    def write(self, name: str, text: str) -> bool:
        """Write the file, unless it has this text already. Returns whether it had another one."""
        ...

    def remove(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class StatementFiles:
    """The statements that a run wrote. `changed`: files that were there and said something else."""

    statements: int
    unpriced_calls: int
    changed: int = 0


def file_name(entity: str, request: StatementRequest, group_id: str = "") -> str:
    """A name that is safe on every file system: something readable, and a hash that no two entities share.

    `group_id`: with groups below, because a deleted group may have had the same external id.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", entity.lower())[:_READABLE].strip("-")
    digest = hashlib.sha256(f"{entity}\n{group_id}".encode() if group_id else entity.encode()).hexdigest()[:32]
    return "_".join(part for part in (request.month, readable, digest) if part) + f".{request.form}"


async def write_all(
    client: Client, request: StatementRequest, directory: Directory, tell: Callable[[int], None]
) -> StatementFiles:
    """Write the statement of each entity that has calls, then the index. `tell` hears how many there are so far.

    Without an index the directory is incomplete; the same command again writes what is missing.
    """
    _check_same_month(directory.read(_INDEX), request)
    rows: list[tuple[Any, ...]] = [_HEADERS]
    count = unpriced = changed = 0
    async for page in report_pages(client, _PAGE_ITEMS, **request.query()):
        is_final = request.is_final(page["window"])
        directory.remove(_INDEX)
        for item in page["items"]:
            statement = Statement(
                item.get("external_entity_id", ""), request.month, item["lines"], is_final, request.with_groups_below
            )
            group_id = item.get("group_id", "")
            name = file_name(statement.entity, request, group_id)
            changed += directory.write(name, statement_text(statement, request.form))
            rows += [(*row, group_id) for row in _rows(statement, name)]
            unpriced += statement.unpriced_calls
        count += len(page["items"])
        tell(count)
    directory.write(_INDEX, csv_text(rows))
    return StatementFiles(count, unpriced, changed)


def _rows(statement: Statement, name: str) -> list[tuple[Any, ...]]:
    """A row for each currency. Counts are in the first one alone, so sums over a column stay right."""
    rows = []
    counts = (sum(line["calls"] for line in statement.lines), statement.unpriced_calls)
    totals = [(currency, rounded_text(currency, total)) for currency, total in statement.totals.items()]
    for total in totals or [("", "")]:
        rows.append((statement.entity, name, statement.month, statement.status, *counts, *total))
        counts = (0, 0)
    return rows


def _check_same_month(index: str | None, request: StatementRequest) -> None:
    """Another month's index is not replaced."""
    for row in csv.DictReader((index or "").splitlines()):
        file = row.get("file") or ""
        is_same_form = file.endswith(f".{request.form}") and bool(row.get("group_id")) == request.with_groups_below
        if row.get("month") != request.month or not is_same_form:
            raise ManagementError(f"the directory has other statements, such as {file}. Name another --output")
        return
