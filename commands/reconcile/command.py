"""`tollgate events reconcile` (docs/reference/reconciling.md)."""

import math
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from commands.connection import Client, Connection, over_api
from commands.errors import InvoiceError, ManagementError
from commands.lists import items_of
from commands.output import Column, json_text, table
from commands.policy_file.reading import read_provider_names
from commands.progress import reading
from commands.reconcile.invoice_check import FIGURES, IDENTITIES, Columns, InvoiceCheck, models_of
from commands.reconcile.journal_check import Difference, JournalCheck, read_calls
from commands.reconcile.spend_check import SpendCheck
from commands.records.billing_events import Event, epoch_s, read_event
from commands.renamed_flags import WINDOW, RenamedFlags
from commands.times import TIMES, at_flag
from policy.endpoints import PROVIDER_NAMES

_EVENTS = "/v1/gateway/events"
_ENDPOINTS = "/v1/gateway/endpoints"
_SHOWN = 50


@click.command("reconcile", cls=RenamedFlags, renamed=WINDOW)
@click.option("--since", callback=at_flag, help=f"The window's start, for journals and invoices: {TIMES}.")
@click.option("--until", callback=at_flag, help="The window's end, exclusive.")
@click.option(
    "--journal",
    "journals",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="A proxy machine's journal directory; may be repeated.",
)
@click.option("--all-machines", is_flag=True, help="The journals are those of all machines: events must be in one.")
@click.option("--workspace-id", help="Whose calls of the journals to compare, if no call is among the events.")
@click.option("--invoice", type=click.Path(dir_okay=False, path_type=Path), help="An upstream's invoice, a CSV file.")
@click.option(
    "--columns", metavar="NAME=COLUMN,…", help=f"The invoice's columns; names: {', '.join((*IDENTITIES, *FIGURES))}."
)
@click.option(
    "--provider", type=str.upper, help="Compare the invoice with the slugs of this provider, or alias of it, only."
)
@click.option(
    "--tolerance", default=0.0, type=click.FloatRange(0, 100), help="Percent by which the invoice's figures may differ."
)
@click.option("--spend", is_flag=True, help="Compare what groups have spent, and drawn from balances, with the events.")
@over_api
def reconcile(connection: Connection, **flags: Any) -> None:
    """Compare journals, the database, an upstream's invoice and what is spent, and print the differences.

    The exit status is 0 if there is none and 1 otherwise.
    """
    if flags["spend"]:
        _check_spend_alone(flags)
        report = connection.run(_spend_report)
    else:
        _check_window(flags)
        report = connection.run(lambda client: Comparison(client, flags).report())
    click.echo(json_text(report) if connection.as_json else _text(report))
    sys.exit(1 if report["differences"] else 0)


def _check_window(flags: Mapping[str, Any]) -> None:
    if not flags["journals"] and flags["invoice"] is None:
        raise click.UsageError("give --journal, --invoice or both, or --spend")
    if flags["since"] is None or flags["until"] is None:
        raise click.UsageError("give --since and --until, the window of the events to compare")
    if math.isnan(flags["tolerance"]):
        raise click.UsageError("--tolerance is a number of percent")
    if flags["until"] <= flags["since"]:
        raise click.UsageError("--until must be after --since")


def _check_spend_alone(flags: Mapping[str, Any]) -> None:
    if flags["journals"] or flags["invoice"] is not None or flags["since"] is not None or flags["until"] is not None:
        raise click.UsageError("--spend goes alone: it compares the present windows of spend limits, and balances")


async def _spend_report(client: Client) -> dict[str, Any]:
    with reading("groups") as report:
        check = SpendCheck(client, report)
        differences = await check.differences()
    counts = {"groups_compared": check.compared, "balances_compared": check.balances_compared}
    return {"counts": counts, "differences": [asdict(difference) for difference in differences]}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run of the command."""

    client: Client
    flags: Mapping[str, Any]

    async def report(self) -> dict[str, Any]:
        """Raises ManagementError."""
        count = 0
        window = {"start_time": self.flags["since"], "end_time": self.flags["until"]}
        await self._check_is_final(window)
        journal = self._journal_check()
        invoice = await self._invoice_check()
        async for event in self._events(window):
            count += 1
            if journal is not None:
                journal.add(event)
            if invoice is not None:
                invoice.add_event(event)
        differences: list[Difference] = []
        counts = {"events": count}
        report: dict[str, Any] = {"window": window}
        if journal is not None:
            await self._find_late(journal)
            differences += journal.differences()
            counts |= journal.counts()
        if invoice is not None:
            differences += invoice.differences()
            counts |= invoice.counts()
            report["totals"] = invoice.totals()
        return report | {"counts": counts, "differences": [asdict(difference) for difference in differences]}

    async def _check_is_final(self, window: Mapping[str, Any]) -> None:
        answered = (await self.client.call("GET", _EVENTS, limit=1, **window))["window"]["end_time"]
        if answered < window["end_time"]:
            raise ManagementError(f"events are final up to {answered} now; choose an --until that is not later")

    def _journal_check(self) -> JournalCheck | None:
        from commands.edges.journal_lines import journal_lines

        if not self.flags["journals"]:
            return None
        calls = read_calls(line for directory in self.flags["journals"] for line in journal_lines(directory))
        start_s = epoch_s(self.flags["since"])
        end_s = epoch_s(self.flags["until"])
        return JournalCheck(calls, self.flags["workspace_id"], start_s, end_s, self.flags["all_machines"])

    async def _invoice_check(self) -> InvoiceCheck | None:
        from commands.edges.invoice_file import opened_invoice

        if self.flags["invoice"] is None:
            return None
        endpoints = [endpoint async for endpoint in items_of(self.client, _ENDPOINTS)]
        models = models_of(endpoints, self.flags["provider"], await self._providers(endpoints))
        if self.flags["provider"] is not None and not models:
            raise ManagementError(f"--provider: no endpoint has the provider {self.flags['provider']!r} now")
        with opened_invoice(self.flags["invoice"]) as rows:
            columns = Columns.of(self.flags["columns"], rows.fieldnames or ())
            tolerance = Fraction(str(self.flags["tolerance"])) / 100
            check = InvoiceCheck(columns, models, self._days(columns), tolerance)
            for row in rows:
                check.add_row(rows.line_num, row)
        return check

    async def _providers(self, endpoints: Sequence[Any]) -> Mapping[str, str]:
        """The provider of each name. Control is asked only for an installation's own aliases."""
        if self.flags["provider"] is None:
            return {}
        names = {self.flags["provider"], *(endpoint["targets"][0]["provider"] for endpoint in endpoints)}
        if names <= PROVIDER_NAMES.keys():
            return {name: one.provider for name, one in PROVIDER_NAMES.items()}
        return await read_provider_names(self.client)

    def _days(self, columns: Columns) -> tuple[str, str]:
        (first, at), (last, until) = (self.flags[name].split("T") for name in ("since", "until"))
        if "day" in columns.by and (at, until) != ("00:00:00.000Z", "00:00:00.000Z"):
            raise InvoiceError("it has days, so --since and --until must be midnights of UTC")
        return first, last

    async def _find_late(self, journal: JournalCheck) -> None:
        """Events are stamped when they came in, at the earliest: a call of the window may be listed after it."""
        if not journal.missing():
            return
        async for event in self._events({"start_time": self.flags["until"]}):
            if event.key in journal.calls:
                journal.add(event, is_late=True)

    async def _events(self, window: Mapping[str, Any]) -> AsyncIterator[Event]:
        included = {"include": "details"} if self.flags["journals"] else {}
        async for item in items_of(self.client, _EVENTS, **window, **included):
            yield read_event(item)


def _text(report: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report["counts"].items())
    lines = [counts]
    for side, totals in report.get("totals", {}).items():
        lines.append(f"{side}: " + ", ".join(f"{total} {name}" for name, total in totals.items()))
    differences = report["differences"]
    if not differences:
        return "\n".join([*lines, "no differences"])
    lines += ["", table(_COLUMNS, differences[:_SHOWN])]
    if len(differences) > _SHOWN:
        lines.append(f"and {len(differences) - _SHOWN} more; --json prints all")
    return "\n".join(lines)


_COLUMNS = (
    Column("DIFFERENCE", lambda difference: difference["what"]),
    Column("WHERE", lambda difference: difference["where"]),
    Column("EVENTS", lambda difference: difference["ours"]),
    Column("OTHER SIDE", lambda difference: difference["theirs"]),
)
