"""The pages below `/console/`: one locked-down shell, and a fixed set of files that it loads.

See docs/reference/console.md#pages.
"""

import re
from posixpath import dirname, join, normpath

from control.api.console.pages import ASSETS, PAGES
from policy.endpoints import PROVIDER_NAMES
from policy.limits.kinds import KINDS
from tests.control.api.console.browser import Browser
from tests.control.plane import ControlPlane

LARGEST_LOAD_BYTES = 300_000
IMPORTED = re.compile(r'(?:from|^import) "(\.[^"]+)";', re.MULTILINE)


async def test_console_leads_to_the_overview(sqlite_plane: ControlPlane) -> None:
    for path in ("/console", "/console/"):
        answer = await Browser(sqlite_plane).get(path)
        assert (answer.status, answer.headers["Location"]) == (303, "/console/overview")


async def test_every_page_is_the_same_locked_down_shell(sqlite_plane: ControlPlane) -> None:
    for page in PAGES:
        answer = await Browser(sqlite_plane).get(f"/console/{page}?id=grp_1")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert answer.headers["Content-Security-Policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
            " form-action 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none';"
            " frame-ancestors 'none'"
        )
        expected = {
            "Cache-Control": "no-store",
            "X-Frame-Options": "DENY",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        assert {name: answer.headers[name] for name in expected} == expected
        for loaded in ("console.css", "icon.svg", "main.mjs"):
            assert f'"/console/assets/{loaded}"' in answer.body
        assert "http:" not in answer.body
        assert "https:" not in answer.body
        assert "Set-Cookie" not in answer.headers


async def test_assets_are_served_with_their_types_and_revalidated(sqlite_plane: ControlPlane) -> None:
    types = {"css": "text/css", "mjs": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
    assert {"console.css", "icon.svg", "main.mjs"} <= ASSETS.keys()
    for name in ASSETS:
        path = f"/console/assets/{name}"
        answer = await Browser(sqlite_plane).get(path)
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-cache")
        assert answer.headers["Content-Type"] == f"{types[name.rpartition('.')[2]]}; charset=utf-8"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        again = await Browser(sqlite_plane).get(path, headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status, again.body) == (304, "")
        assert again.headers["Content-Security-Policy"] == answer.headers["Content-Security-Policy"]


async def test_tables_name_the_kinds_of_limits_and_the_fields_of_each_provider(sqlite_plane: ControlPlane) -> None:
    answer = await Browser(sqlite_plane).get("/console/tables.json")
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store")
    tables = answer.body
    assert [(one["type"], one["unit"]) for one in tables["limits"]["kinds"]] == list(KINDS)
    assert [one["name"] for one in tables["providers"]] == list(PROVIDER_NAMES)
    assert tables["regions"] == ["UNRESTRICTED"]
    assert tables["providers"][-1]["fields"] == ["base_url", "secret_id", "target_model"]
    assert next(one["fields"] for one in tables["providers"] if one["name"] == "VERTEX")[-1] == "vertex_config"


def test_every_page_loads_little() -> None:
    start = {"console.css", "icon.svg", *loaded_with("main.mjs")}
    pages = [name for name in ASSETS if name.startswith("pages/")]
    for page in pages:
        load = start | loaded_with(page)
        assert load <= ASSETS.keys(), page
        assert sum(ASSETS[name].stat().st_size for name in load) < LARGEST_LOAD_BYTES, page


def loaded_with(module: str) -> set[str]:
    """The module, and all modules that it imports at once."""
    names = set[str]()
    queue = [module]
    while queue:
        name = queue.pop()
        if name not in names:
            names.add(name)
            source = ASSETS[name].read_text()
            queue += [normpath(join(dirname(name), path)) for path in IMPORTED.findall(source)]
    return names


NEITHER = (
    "assets/",
    "assets/../pages.py",
    "assets/..%2fpages.py",
    "assets/%2e%2e/pages.py",
    "assets/%2fetc%2fpasswd",
    "assets//etc/passwd",
    "assets/shell.html",
    "assets/main.mjs/",
    "assets/main.mjs%00",
    "assets/pages/..%2fmain.mjs",
    "nothing",
    "overview/",
    "Overview",
    "%00",
    "..%2fv1",
)


async def test_what_is_no_page_and_no_asset_is_404(sqlite_plane: ControlPlane) -> None:
    for path in NEITHER:
        (await Browser(sqlite_plane).get(f"/console/{path}")).refused(404, "NOT_FOUND")


async def test_pages_are_only_read(sqlite_plane: ControlPlane) -> None:
    for path in ("/console", "/console/overview", "/console/assets/main.mjs"):
        head = await Browser(sqlite_plane).ask("HEAD", path)
        assert (head.status, head.body) == ((303 if path == "/console" else 200), "")
        for method in ("POST", "PUT", "OPTIONS"):
            answer = await Browser(sqlite_plane).ask(method, path)
            answer.refused(405, "METHOD_NOT_ALLOWED")
            assert "Access-Control-Allow-Origin" not in answer.headers
    (await Browser(sqlite_plane).ask("OPTIONS", "/console/session")).refused(405)
