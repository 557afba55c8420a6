"""Lists are printed page by page, and end at `--limit`."""

import asyncio
from typing import Any

import click
import pytest
from click.testing import CliRunner

from commands.connection import Connection
from control.operator.cli import tollgate
from tests.commands.fake_api import FakeApi, page

LISTED = "GET /v1/gateway/groups"
NAMES = [f"customer-{number:04}" for number in range(2_500)]


def group(name: str) -> dict[str, Any]:
    return {
        "id": f"grp_{name}",
        "metadata": {"external_entity_id": name, "name": None},
        "hierarchy": {"parent_group_id": None, "limit_enforcement": "INDEPENDENT"},
        "models": [],
        "effective_models": [],
        "updated_at": "2026-11-30T00:00:00.000Z",
    }


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """Groups in pages of 1000. A cursor carries the limit, as control's do."""

    def answer(_body: Any, query: Any) -> Any:
        at, _, limit = query.get("cursor", f"0-{query.get('limit')}").partition("-")
        end = int(at) + int(limit)
        return page(*map(group, NAMES[int(at) : end]), cursor=f"{end}-{limit}" if end < len(NAMES) else None)

    fake = FakeApi({LISTED: answer})
    monkeypatch.setattr(Connection, "run", lambda _self, work: asyncio.run(work(fake)))
    monkeypatch.setenv("TOLLGATE_API_KEY", "tg_x")
    return fake


def test_each_page_is_printed_before_the_next_one_is_read(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[int] = []
    echo = click.echo

    def noted(text: str = "", **more: Any) -> None:
        lines.append(len(api.requests))
        echo(text, **more)

    monkeypatch.setattr(click, "echo", noted)
    result = CliRunner().invoke(tollgate, ["groups", "list"])
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["EXTERNAL", *NAMES]
    assert lines == [1, 2, 3]
    assert [query.get("effective_models") for *_, query in api.requests] == ["false", None, None]


@pytest.mark.parametrize(("limit", "requests"), [(1, 1), (1000, 1), (1001, 2), (2500, 3), (9000, 3)])
def test_a_list_ends_at_its_limit_and_says_so(api: FakeApi, limit: int, requests: int) -> None:
    result = CliRunner().invoke(tollgate, ["groups", "list", "--limit", str(limit)])
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == NAMES[:limit]
    assert ("There are more" in result.stderr) is (limit < len(NAMES))
    assert len(api.requests) == requests


def test_a_tree_of_a_limit_has_the_oldest_groups(api: FakeApi) -> None:
    result = CliRunner().invoke(tollgate, ["groups", "tree", "--no-usage", "--limit", "2"])
    assert [line.split()[0] for line in result.stdout.splitlines()] == NAMES[:2]
