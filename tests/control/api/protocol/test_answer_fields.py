"""Header fields that every answer of control has, whatever its route and status."""

import re
from pathlib import Path

import pytest

from control.app import build
from tests.control.plane import TOKEN, ControlPlane, settings_on


def routes(directory: Path) -> set[tuple[str, str]]:
    """Each method and path of control, with a name that nothing has in every place."""
    app = build(settings_on(f"sqlite+aiosqlite:///{directory}/unused.db"))
    resources = [(route.method, route.resource) for route in app.router.routes()]
    pairs = {(method, re.sub(r"\{[^}]*\}", "x", resource.canonical)) for method, resource in resources if resource}
    return {("GET" if method == "*" else method, path) for method, path in pairs}


@pytest.mark.parametrize("key", ["a key", "the internal token", ""])
async def test_every_route_forbids_sniffing_and_names_no_version(
    sqlite_plane: ControlPlane, tmp_path: Path, key: str
) -> None:
    credential = {"a key": sqlite_plane.key, "the internal token": TOKEN}.get(key, "")
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    pairs = routes(tmp_path)
    for method, path in sorted(pairs):
        async with sqlite_plane.client.request(method, path, headers=headers, allow_redirects=False) as answer:
            assert answer.headers.getall("X-Content-Type-Options", []) == ["nosniff"], (method, path)
            assert answer.headers.getall("Server", []) == ["tollgate"], (method, path)
    assert len(pairs) > 100
