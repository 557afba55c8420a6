"""A log as both ways of reading it show it."""

from typing import Any

from tests.control.plane import ControlPlane, Json


async def log_lines(plane: ControlPlane, path: str, **filters: Any) -> list[Json]:
    """The lines of the log below `path`, read with the filters in the body and in the URL, which gives the same."""
    lines: list[Json] = (await plane.post(f"{path}/logs", filters)).ok()["logs"]
    texts = [
        (name, str(one))
        for name, value in filters.items()
        for one in (value if isinstance(value, list) else [value])
        if one is not None
    ]
    assert (await plane.get(f"{path}/logs", params=texts)).ok()["logs"] == lines
    return lines
