"""The tags of the document and the name and text of each operation, from `operations.toml`.

See docs/reference/management-api.md#description.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("operations.toml")


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


@cache
def _sections() -> list[dict[str, dict[str, list[str]]]]:
    tags: list[dict[str, dict[str, list[str]]]] = tomllib.loads(_FILE.read_text())["tags"]
    return tags


def tags() -> list[Tag]:
    """The tags, in the order of the document."""
    return [Tag(str(section["name"]), str(section["description"])) for section in _sections()]


def names_by_route() -> Mapping[str, Names]:
    """The wording of each operation by its route, `GET /v1/gateway/groups`."""
    return {
        route: Names(id, str(section["name"]), text)
        for section in _sections()
        for id, (route, text) in section["operations"].items()
    }
