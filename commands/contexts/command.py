"""`tollgate context`: which management API commands work on, by name (docs/reference/command-line.md#contexts)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from commands.edges.context_file import Context, Contexts, path_of_contexts, read_contexts, write_contexts
from commands.editing.deletion import ask_before, yes_option
from commands.editing.hidden_values import hidden_value
from commands.errors import NoAccessError
from commands.output import Column, json_text, table
from runtime.environment import http_url

_COLUMNS = (
    Column("NAME", lambda item: item["name"]),
    Column("URL", lambda item: item["url"]),
    Column("IN USE", lambda item: "yes" if item["in_use"] else None),
)


@click.group()
def context() -> None:
    """Management APIs by name: which one commands work on, and with which key."""


@context.command()
@click.argument("name")
@click.option("--url", required=True, help="The management API.")
@click.option(
    "-f",
    "--file",
    type=click.File(encoding="utf-8"),
    help="A file with the key; without it, standard input or a prompt.",
)
def add(name: str, url: str, file: TextIO | None) -> None:
    """Keep a management API and a key for it. The first one is in use at once."""
    with _refusals():
        contexts = read_contexts(path_of_contexts())
        if name in contexts.by_name:
            raise click.UsageError(f"there is a context {name!r} already: remove it first, or choose another name")
        try:
            address = http_url(url)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from None
        new = Context(address, hidden_value(file, "key", "-f"))
        in_use = contexts.in_use if contexts.by_name else name
        write_contexts(path_of_contexts(), Contexts({**contexts.by_name, name: new}, in_use))


@context.command()
@click.argument("name", required=False)
@click.option("--none", "is_none", is_flag=True, help="Use none: commands work on the `tollgate up` of this machine.")
def use(name: str | None, is_none: bool) -> None:
    """Let commands work on this management API from now on."""
    if is_none == (name is not None):
        raise click.UsageError("give the NAME of a context, or --none")
    with _refusals():
        contexts = read_contexts(path_of_contexts())
        if name is not None and name not in contexts.by_name:
            raise click.UsageError(_unknown(name, [*contexts.by_name]))
        write_contexts(path_of_contexts(), Contexts(contexts.by_name, name))


@context.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_contexts(as_json: bool) -> None:
    """Print all contexts, without their keys."""
    with _refusals():
        contexts = read_contexts(path_of_contexts())
    items = [
        {"name": name, "url": one.url, "in_use": name == contexts.in_use}
        for name, one in sorted(contexts.by_name.items())
    ]
    click.echo(json_text({"items": items}) if as_json else table(_COLUMNS, items))


@context.command()
@click.argument("name")
@yes_option
def remove(name: str, is_sure: bool) -> None:
    """Forget a context and its key. The key itself stays valid."""
    with _refusals():
        contexts = read_contexts(path_of_contexts())
        if name not in contexts.by_name:
            raise click.UsageError(_unknown(name, [*contexts.by_name]))
        ask_before(f"context {name}", is_sure)
        rest = {other: one for other, one in contexts.by_name.items() if other != name}
        write_contexts(path_of_contexts(), Contexts(rest, None if contexts.in_use == name else contexts.in_use))


@contextmanager
def _refusals() -> Iterator[None]:
    """Tell of a file that cannot be used as any command tells of what it cannot do."""
    try:
        yield
    except NoAccessError as error:
        raise click.ClickException(str(error)) from None


def _unknown(name: str, names: list[str]) -> str:
    return f"there is no context {name!r}; there are {', '.join(sorted(names)) or 'none'}"
