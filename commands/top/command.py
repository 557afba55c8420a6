"""`tollgate top`: looks at the proxies' metrics again and again and shows what happened in between."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from commands.connection import data_option
from commands.errors import ManagementError
from commands.top.proxies import Follower, Place, View
from commands.top.screen import in_place, json_line, log_line, screen
from runtime.environment import http_url

Show = Callable[[View], None]


@click.command()
@click.option("--metrics-url", "urls", multiple=True, help="A proxy's metrics, once per machine; may be repeated.")
@data_option
@click.option("--interval-s", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Between looks.")
@click.option("--rows", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many groups and slugs.")
@click.option("--once", is_flag=True, help="Show one interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per interval.")
@click.pass_context
def top(
    context: click.Context,
    urls: Sequence[str],
    data: Path,
    interval_s: float,
    rows: int,
    once: bool,
    as_json: bool,
) -> None:
    """Show live calls, errors, refusals, tokens, and the busiest groups and slugs.

    On the machine of `tollgate up` no URL and no token is needed. Elsewhere set TOLLGATE_METRICS_TOKEN.
    """
    places: list[Place] = [partial(str, _metrics_url(url)) for url in urls]
    show = _json if as_json else partial(_once if once else _again, rows)
    try:
        asyncio.run(_run(places or [lambda: f"{context.obj.admin_url(data)}/metrics"], show, interval_s, once))
    except ManagementError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:  # how a person ends it
        return


def _metrics_url(text: str) -> str:
    try:
        url = http_url(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics-url") from None
    return url if url.endswith("/metrics") else f"{url}/metrics"


async def _run(places: Sequence[Place], show: Show, interval_s: float, once: bool) -> None:
    from commands.edges.metrics_reader import MetricsReader  # aiohttp takes 0.2 s to import

    reader = MetricsReader(os.environ.get("TOLLGATE_METRICS_TOKEN", "").strip())
    try:
        await follow(Follower(places, reader.read), show, interval_s, once)
    finally:
        await reader.close()


async def follow(follower: Follower, show: Show, interval_s: float, once: bool) -> None:
    """Show each interval. ManagementError if no proxy answers at first, or `once` there is nothing to show."""
    await follower.look()
    while True:
        await asyncio.sleep(interval_s)
        view = await follower.look()
        if once and len(view.away) == len(view.proxies):
            raise ManagementError(view.away[0].reason)
        show(view)
        if once:
            return


def _json(view: View) -> None:
    click.echo(json_line(view, _now()))


def _once(rows: int, view: View) -> None:
    click.echo(screen(view, rows))


def _again(rows: int, view: View) -> None:
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        size = os.get_terminal_size(sys.stdout.fileno())  # 0 where it is not known
        click.echo(in_place(view, rows, size.columns or 80, size.lines or 24), nl=False)
    else:
        click.echo(log_line(view, _now()))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
