"""Answers of training, whose lists have a member of their own and no pages."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from commands.connection import Connection
from commands.output import Column, json_text, table


def print_table(connection: Connection, answer: Mapping[str, Any], member: str, columns: Sequence[Column]) -> None:
    """Print the list in `member` of the answer, or the whole answer as JSON."""
    click.echo(json_text(answer) if connection.as_json else table(columns, answer[member]))
