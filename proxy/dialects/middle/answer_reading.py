"""Reads members of a vendor's answer, whose form may differ from the documented one: what is amiss counts as absent.

Pure.
"""

from typing import Any

Json = dict[str, Any]


def text_in(container: object, name: str) -> str:
    """A member of an object if it is text; else empty."""
    value = container.get(name) if isinstance(container, dict) else None
    return value if isinstance(value, str) else ""


def integer_in(container: object, name: str) -> int | None:
    value = container.get(name) if isinstance(container, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def object_in(container: object, name: str) -> Json:
    value = container.get(name) if isinstance(container, dict) else None
    return value if isinstance(value, dict) else {}


def objects_in(container: object, name: str) -> list[Json]:
    value = container.get(name) if isinstance(container, dict) else None
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
