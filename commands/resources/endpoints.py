"""`tollgate endpoints`: slugs and their targets (docs/reference/command-line.md#resources)."""

from collections.abc import Mapping
from typing import Any

import click

from commands.connection import Connection, over_api
from commands.output import Column
from commands.resources.lists import print_list

_PATH = "/v1/gateway/endpoints"


@click.group()
def endpoints() -> None:
    """Slugs and their targets."""


@endpoints.command("list")
@over_api
def list_endpoints(connection: Connection) -> None:
    """Print all endpoints."""
    print_list(connection, _PATH, _COLUMNS)


def _target(field: str) -> Any:
    def cell(endpoint: Mapping[str, Any]) -> Any:
        return endpoint["targets"][0].get(field)

    return cell


_COLUMNS = (
    Column("SLUG", lambda endpoint: endpoint["slug"]),
    Column("PROVIDER", _target("provider")),
    Column("TARGET MODEL", _target("target_model")),
    Column("ID", lambda endpoint: endpoint["id"]),
    Column("UPDATED", lambda endpoint: endpoint["updated_at"]),
)
