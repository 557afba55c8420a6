"""The usual linters of OpenAPI documents, with all their recommended rules, find nothing in control's.

See docs/reference/management-api.md#description.
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.catalogue import ROOT, node
from tests.control.plane import ControlPlane

Json = dict[str, Any]
PROGRAMS = ROOT / ".clients/openapi_lint/node_modules/.bin"
QUIET: Mapping[str, str] = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
"""Neither asks another host."""
pytestmark = [
    pytest.mark.skipif(not PROGRAMS.exists(), reason="make .clients/openapi_lint/.installed; apt: npm"),
    pytest.mark.timeout(300),
]


async def run(words: Sequence[str], directory: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *words, cwd=directory, env=os.environ | QUIET, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode in (0, 1), errors.decode()
    return output.decode()


async def spectral(document: Path) -> set[tuple[str, str]]:
    """The rule and the place of each finding of the ruleset `spectral:oas`, hints too."""
    rules = document.with_name("rules.yaml")
    rules.write_text('extends: ["spectral:oas"]\n')
    words = [str(node()), str(PROGRAMS / "spectral"), "lint", str(document), "--ruleset", str(rules)]
    words += ["--format", "json", "--quiet"]
    findings: list[Json] = json.loads(await run(words, document.parent))
    return {(one["code"], "/".join(map(str, one["path"]))) for one in findings}


async def redocly(document: Path) -> set[tuple[str, str]]:
    """The rule and the place of each finding of the rules `recommended`, warnings too."""
    words = [str(node()), str(PROGRAMS / "redocly"), "lint", str(document), "--extends", "recommended"]
    words += ["--format", "json"]
    report: Json = json.loads(await run([*words, "--max-problems", "1000"], document.parent))
    return {(one["ruleId"], one["location"][0]["pointer"]) for one in report["problems"]}


async def read(plane: ControlPlane, path: str) -> Json:
    document: Json = (await plane.get(path)).ok()
    return document


@pytest.mark.parametrize("path", ["/v1/openapi.json", "/v1/openapi-inference.json"])
async def test_linters_find_nothing(sqlite_plane: ControlPlane, path: str, tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(await read(sqlite_plane, path)))
    assert await spectral(file) == set()
    assert await redocly(file) == set()


async def test_linters_find_what_is_wrong(sqlite_plane: ControlPlane, tmp_path: Path) -> None:
    document = await read(sqlite_plane, "/v1/openapi.json")
    path = "/v1/gateway/groups"
    operation = document["paths"][path]["post"]
    document["paths"] = {path: {"post": operation}}
    operation["requestBody"]["content"]["application/json"]["example"]["models"] = "none"
    del operation["description"]
    operation["security"] = [{"unknown": []}]
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document))
    rules = {rule for rule, _ in await spectral(file)}
    assert {"operation-description", "oas3-valid-media-example"} <= rules
    assert "security-defined" in {rule for rule, _ in await redocly(file)}
