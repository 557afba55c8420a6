"""Bodies for create and set: the API's JSON from a file or standard input, with what flags say put over it."""

import json
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, TextIO

import click

file_option = click.option(
    "-f", "--file", type=click.File(encoding="utf-8"), help="The API's JSON, from a file, or - for standard input."
)


def body_of(file: TextIO | None, members: Mapping[str, Any]) -> dict[str, Any]:
    """The file's object with `members` put over it, member by member. Raises click.ClickException."""
    return _over(_read(file) if file is not None else {}, members)


def only(**members: Any) -> dict[str, Any]:
    """The members that are not None: what was not given is not sent."""
    return {name: value for name, value in members.items() if value is not None}


def check_something(body: Mapping[str, Any]) -> None:
    """Refuse a change that changes nothing. The message names what the command takes before -f."""
    if not body:
        parameters = click.get_current_context().command.params
        members = takewhile(lambda one: one.name != "file", parameters)
        names = (name for one in members if not one.required for name in _names(one))
        raise click.UsageError(f"nothing to change: give {', '.join(names)} or -f")


def _names(parameter: click.Parameter) -> list[str]:
    if isinstance(parameter, click.Argument):
        return [parameter.human_readable_name.strip("[]")]
    return [*parameter.opts, *parameter.secondary_opts]


def _read(file: TextIO) -> dict[str, Any]:
    try:
        value = json.loads(file.read(), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"-f: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.ClickException("-f: expected a JSON object")
    return value


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """The API refuses duplicate names; here one of them would be lost before it sees them."""
    value = dict(members)
    if len(value) != len(members):
        names = [name for name, _ in members]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return value


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        lower = merged.get(name)
        merged[name] = _over(lower, value) if isinstance(lower, dict) and isinstance(value, Mapping) else value
    return merged
