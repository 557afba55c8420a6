"""`tollgate events forward` (docs/reference/forwarding.md)."""

import json
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from commands.connection import Client, Connection, over_api
from commands.errors import ManagementError
from commands.forward.receivers import DEFAULT_URLS, FILES, Destination, receiver_for
from commands.forward.stripe_meters import FIGURES
from commands.records.progress import Progress, progress_line, status
from commands.renamed_flags import WINDOW, RenamedFlags
from commands.times import TIMES, at_flag

_TOLD_EVERY_S = 10.0


def _print_status(context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is None or context.resilient_parsing:
        return
    from commands.edges.forwarding.forwarder_state import read_progress

    try:
        click.echo(json.dumps(status(*read_progress(path), time.time())))
    except ManagementError as error:
        raise click.ClickException(str(error)) from None
    context.exit()


_file = click.Path(dir_okay=False, path_type=Path)


@click.command("forward", cls=RenamedFlags, renamed=WINDOW)
@click.option("--to", "kind", required=True, type=click.Choice([*DEFAULT_URLS, *FILES]), help="What takes the events.")
@click.option(
    "--state", "state_path", required=True, type=_file, help="The file that says what was delivered. Keep it."
)
@click.option("--since", callback=at_flag, help=f"With a new state: deliver what was called from then on: {TIMES}.")
@click.option("--until", callback=at_flag, help="Deliver no event from then on.")
@click.option("--follow", is_flag=True, help="Go on with new events until stopped.")
@click.option("--interval", default=10.0, type=click.FloatRange(0.1), show_default=True, help="Seconds between looks.")
@click.option(
    "--retry-for", type=click.FloatRange(0), help="Give up after so many seconds; 600, with --follow never by default."
)
@click.option("--dead-letter", type=_file, help="Put events that the receiver refuses for good into this file.")
@click.option("--resend-in-doubt", is_flag=True, help="Send again what may have been delivered over 23 hours ago.")
@click.option("--batch", type=click.IntRange(1, 100_000), help="Events between two saves of the state.")
@click.option("--receiver-url", help="The receiver's base URL.")
@click.option("--output", type=click.Path(path_type=Path), help="jsonl: the file; parquet: the directory.")
@click.option("--details", is_flag=True, help="Take the details of events along, such as reasoning and cache writes.")
@click.option("--source", default="tollgate", show_default=True, help="CloudEvents' source.")
@click.option("--event-type", default="tollgate.usage", show_default=True, help="CloudEvents' type.")
@click.option(
    "--meter", "meters", multiple=True, metavar="NAME=FIGURE", help=f"Stripe's meter; one of {', '.join(FIGURES)}."
)
@click.option("--customer", help="Stripe's customer, with {external_entity_id} in it.")
@click.option("--customers", type=_file, help="CSV file: external_entity_id, stripe_customer_id.")
@click.option(
    "--status",
    type=_file,
    metavar="STATE",
    is_eager=True,
    expose_value=False,
    callback=_print_status,
    help="Print how far the forwarder with this state is, and end.",
)
@over_api
def forward(connection: Connection, **flags: Any) -> None:
    """Deliver each billing event once, to a billing system or into files.

    The keys of receivers come from STRIPE_API_KEY, OPENMETER_API_KEY or TOLLGATE_FORWARD_KEY.
    """
    try:
        destination = Destination.of(flags, os.environ)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    run = Run(destination, flags, Teller(connection.as_json))
    connection.run(run.forward)


class Teller:
    """Tells progress on standard error, now and then and in the end; or as JSON on standard output, in the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._told_at_s = time.monotonic()

    def say(self, text: str) -> None:
        click.echo(f"tollgate: {text}", err=True)

    def progress(self, progress: Progress) -> None:
        if time.monotonic() - self._told_at_s >= _TOLD_EVERY_S:
            self._told_at_s = time.monotonic()
            self.say(progress_line(progress, time.time()))

    def end(self, destination: dict[str, Any], progress: Progress) -> None:
        self.say(progress_line(progress, time.time()))
        if self._as_json:
            click.echo(json.dumps(status(destination, progress, time.time())))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command, put together."""

    destination: Destination
    flags: dict[str, Any]
    teller: Teller

    async def forward(self, client: Client) -> None:
        from commands.edges.forwarding.forwarder_state import opened
        from commands.forward.event_batches import EventList
        from commands.forward.forwarder import Forwarder

        purpose = self.destination.purpose()
        async with AsyncExitStack() as stack:
            state = stack.enter_context(opened(self.flags["state_path"], purpose, self.flags["since"]))
            receiver = receiver_for(self.destination)
            stack.push_async_callback(receiver.close)
            options = self._options(stack.callback)
            events = EventList(client, options.retries, self.flags["until"], details=self.destination.details)
            try:
                await Forwarder(events, receiver, state, options).run()
            finally:
                self.teller.end(purpose, state.progress)

    def _options(self, on_exit: Callable[..., Any]) -> Any:
        from commands.edges.forwarding.event_files import LinesFile
        from commands.forward.forwarder import Options
        from commands.forward.retries import Retries

        flags = self.flags
        retry_for_s = flags["retry_for"]
        if retry_for_s is None and not flags["follow"]:
            retry_for_s = 600.0
        dead_letters = None if flags["dead_letter"] is None else LinesFile(flags["dead_letter"], may_go=True)
        if dead_letters is not None:
            on_exit(dead_letters.close)
        return Options(
            retries=Retries(retry_for_s, self.teller.say),
            tell=self.teller.progress,
            follow_s=flags["interval"] if flags["follow"] else None,
            dead_letters=dead_letters,
            resends_in_doubt=flags["resend_in_doubt"],
        )
