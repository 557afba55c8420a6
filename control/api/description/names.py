"""The tags of the document and the name and text of each operation, from `operations.toml`.

See docs/reference/management-api.md#description.
"""

import pkgutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Names:
    """The wording of one operation. `id`: the name that generated clients give to the method."""

    id: str
    tag: str
    text: str


@dataclass(frozen=True, slots=True)
class Tag:
    """A section of the document."""

    name: str
    text: str


def tags() -> list[Tag]:
    """The tags, in the order of the document."""
    return [Tag(section["name"], section["description"]) for section in _sections()]


def names_by_route() -> Mapping[str, Names]:
    """The wording of each operation by its route, `GET /v1/gateway/groups`."""
    return {
        route: Names(id, section["name"], text)
        for section in _sections()
        for id, (route, text) in section["operations"].items()
    }


def _sections() -> list[dict[str, Any]]:
    data = pkgutil.get_data(__package__, "operations.toml") or b""
    sections: list[dict[str, Any]] = tomllib.loads(data.decode())["tags"]
    return sections
