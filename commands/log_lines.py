"""Log lines of deployments and training jobs: the flags that select them, and how they are printed."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from commands.connection import Client, Connection
from commands.editing.bodies import only
from commands.output import cell_text, json_text
from commands.times import TIMES, time_from

F = TypeVar("F", bound=Callable[..., Any])
_LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"]
_OPTIONS = (
    click.option("--since", help=f"The first moment: {TIMES}."),
    click.option("--until", help="The last moment."),
    click.option(
        "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many lines."
    ),
    click.option("--level", type=click.Choice(_LEVELS, case_sensitive=False), help="Of this level, or more important."),
    click.option("--contains", "includes", multiple=True, help="With this text; may be repeated."),
    click.option("--request-id", help="Of this request."),
    click.option("--replica", help="Of this replica."),
)


def log_options(command: F) -> F:
    """Give a command the flags that select log lines."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def print_log(connection: Connection, place: Callable[[Client], Awaitable[str]], flags: dict[str, Any]) -> None:
    """Print the latest lines that the flags select. `place` finds the path of the log."""
    body = _query(flags)

    async def work(client: Client) -> Any:
        return await client.call("POST", await place(client), body)

    answer = connection.run(work)
    if connection.as_json:
        click.echo(json_text(answer))
    else:
        latest = answer["logs"][: body["limit"]]  # a page may have more, to hold whole milliseconds
        for line in reversed(latest):
            click.echo(line_text(line))


def line_text(line: dict[str, Any]) -> str:
    """Time, level, replica and message. Text from a job cannot move the cursor."""
    moment = datetime.fromtimestamp(int(line["timestamp"]) // 1_000_000_000, UTC)
    replica = f" {cell_text(line['replica'])}" if line["replica"] else ""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ} {line['level']:<7}{replica} {cell_text(line['message'])}"


def _query(flags: dict[str, Any]) -> dict[str, Any]:
    times = {"start_epoch_millis": _ms(flags["since"], "--since"), "end_epoch_millis": _ms(flags["until"], "--until")}
    level = flags["level"].upper() if flags["level"] else None
    exact = {name: flags[name] for name in ("request_id", "replica", "limit")}
    return only(**times, **exact, min_level=level, includes=list(flags["includes"]) or None)


def _ms(text: str | None, flag: str) -> int | None:
    if text is None:
        return None
    return round(datetime.fromisoformat(time_from(text, flag)).timestamp() * 1000)
