"""`tollgate keys`: what is set on keys of groups, rotation, and what people and scripts read of both."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from commands.connection import Connection
from commands.editing.key_settings import state_text
from commands.errors import ManagementError
from control.operator.cli import tollgate
from tests.commands.fake_api import FakeApi, page

GROUP = {"id": "grp_1", "metadata": {"external_entity_id": "g"}}
KEYS = "/v1/gateway/groups/grp_1/api_keys"
KEY: dict[str, Any] = {
    "prefix": "tg_abc",
    "name": "ci",
    "created_at": "2026-11-01T00:00:00.000Z",
    "last_used_at": None,
    "state": "ACTIVE",
    "expires_at": None,
    "disabled": False,
    "allowed_ips": ["203.0.113.0/24"],
    "slugs": None,
    "rate_limits": [{"type": "REQUEST", "unit": "SECOND", "threshold": 5}],
    "spend_limits": [{"unit": "DAY", "amount": "1.00", "currency": "EUR", "enforcement": "SOFT"}],
    "replaced_by": None,
}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    api = FakeApi(
        {
            "GET /v1/gateway/groups": page(GROUP),
            "GET /v1/gateway/api_keys": page(KEY | {"type": "FEDERATED", "group": {"id": "grp_1"}}),
            f"GET {KEYS}": page(KEY),
            f"GET {KEYS}/tg_abc": KEY,
            f"POST {KEYS}": KEY | {"api_key": "tg_abc.secret"},
            f"PATCH {KEYS}/tg_abc": KEY,
        }
    )

    def run(_self: Connection, work: Any) -> Any:
        try:
            return asyncio.run(work(api))
        except ManagementError as error:
            raise click.ClickException(str(error)) from None

    monkeypatch.setattr(Connection, "run", run)
    return api


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(tollgate, ["keys", *words], input=stdin, env={"TOLLGATE_API_KEY": "tg_x"})


def done(*words: str, stdin: str | None = None) -> str:
    result = run(*words, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_key_is_created_with_everything_that_can_be_set(api: FakeApi) -> None:
    spend = ("--spend-limit", "DAY=10,eur", "--spend-limit", "MONTH=100.00,EUR,HARD")
    rates = ("--rate-limit", "request/minute=60", "--rate-limit", "TOKEN/SECOND=1000")
    lists = ("--allow-ip", "203.0.113.0/24", "--allow-ip", "2001:db8::/32", "--slug", "a/b")
    printed = done("create", "--group", "g", "--name", "ci", "--expires", "2027-01-31", *lists, *rates, *spend)
    assert api.bodies("POST") == [
        {
            "name": "ci",
            "expires_at": "2027-01-31T00:00:00.000Z",
            "allowed_ips": ["203.0.113.0/24", "2001:db8::/32"],
            "slugs": ["a/b"],
            "rate_limits": [
                {"type": "REQUEST", "unit": "MINUTE", "threshold": 60},
                {"type": "TOKEN", "unit": "SECOND", "threshold": 1000},
            ],
            "spend_limits": [
                {"unit": "DAY", "amount": "10.00", "currency": "EUR", "enforcement": "SOFT"},
                {"unit": "MONTH", "amount": "100.00", "currency": "EUR", "enforcement": "HARD"},
            ],
        }
    ]
    assert "tg_abc.secret" in printed
    assert "5 REQUEST/SECOND" in printed


def test_end_may_be_so_long_from_now(api: FakeApi) -> None:
    before = datetime.now(UTC)
    done("create", "--group", "g", "--expires", "30d")
    (body,) = api.bodies("POST")
    assert before <= datetime.fromisoformat(body["expires_at"]) - timedelta(days=30) <= datetime.now(UTC) + timedelta(1)


def test_registered_key_gets_its_settings_at_once(api: FakeApi) -> None:
    api.answers[f"POST {KEYS}/register"] = {"ok": True, "prefix": "own_0123456789ab", "name": None}
    done("register", "--group", "g", "--slug", "a/b", "--rate-limit", "REQUEST/SECOND=1", stdin="sk-of-my-own\n")
    limits = [{"type": "REQUEST", "unit": "SECOND", "threshold": 1}]
    assert api.bodies("POST") == [{"key": "sk-of-my-own", "slugs": ["a/b"], "rate_limits": limits}]


def test_set_sends_what_is_given_and_whole_lists_of_limits(api: FakeApi) -> None:
    done("set", "tg_abc", "--group", "g", "--expires", "never", "--allow-ip", "any", "--name", "")
    done("set", "tg_abc", "--rate-limit", "TOKEN/MINUTE=9", "--spend-limit", "DAY=none")
    done("set", "tg_abc", "--rate-limit", "REQUEST/MINUTE=7", "--slug", "a/b")
    done("set", "tg_abc", "-f", "-", "--rate-limit", "REQUEST/MINUTE=none", stdin='{"disabled": true}')
    present = KEY["rate_limits"][0]
    assert api.bodies("PATCH") == [
        {"name": None, "expires_at": None, "allowed_ips": None},
        {"rate_limits": [present, {"type": "TOKEN", "unit": "MINUTE", "threshold": 9}], "spend_limits": []},
        {"slugs": ["a/b"], "rate_limits": [{"type": "REQUEST", "unit": "MINUTE", "threshold": 7}]},
        {"disabled": True, "rate_limits": []},
    ]


def test_key_is_disabled_and_enabled_without_naming_its_group(api: FakeApi) -> None:
    done("disable", "tg_abc")
    done("enable", "tg_abc", "--group", "g")
    assert api.bodies("PATCH") == [{"disabled": True}, {"disabled": False}]
    assert ("GET", "/v1/gateway/api_keys", None, {"limit": 1000, "q": "tg_abc", "type": "FEDERATED"}) in api.requests
    refused = run("disable", "tg_ab")  # a part of a prefix is no key
    assert (refused.exit_code, "no group of this workspace has a key 'tg_ab'" in refused.output) == (1, True)
    assert len(api.bodies("PATCH")) == 2


def test_rotation_prints_the_key_alone_and_says_elsewhere_when_the_old_one_ends(api: FakeApi) -> None:
    end = (datetime.now(UTC) + timedelta(hours=2, seconds=30)).isoformat()
    replaces = {"prefix": "tg_abc", "expires_at": end}
    api.answers[f"POST {KEYS}/tg_abc/rotate"] = KEY | {"prefix": "tg_new", "api_key": "tg_new.s", "replaces": replaces}
    result = run("rotate", "tg_abc", "--overlap", "2h")
    assert result.stdout == "tg_new.s\n"
    assert result.stderr == f"tg_new takes its place. tg_abc ends in 2 h, at {end}.\n"
    assert json.loads(done("rotate", "tg_abc", "--json"))["api_key"] == "tg_new.s"
    assert api.bodies("POST") == [{"overlap_seconds": 7200}, {"overlap_seconds": 3600}]


def test_spend_of_a_key_is_printed_without_naming_its_group(api: FakeApi) -> None:
    entry: dict[str, Any] = KEY["spend_limits"][0] | {"spent": "0.25"}
    entry |= {"reserved": "0", "remaining": "0.75", "source_group": None, "reset_at": "2026-11-02T00:00:00.000Z"}
    api.answers[f"GET {KEYS}/tg_abc/spend"] = {"items": [entry]}
    header, row = done("spend", "tg_abc").splitlines()
    assert header.split()[:4] == ["UNIT", "SPENT", "RESERVED", "REMAINING"]
    assert row.split()[:4] == ["DAY", "0.25", "0", "0.75"]
    assert json.loads(done("spend", "tg_abc", "--json")) == {"items": [entry]}


def test_key_of_the_workspace_is_created_with_a_role(api: FakeApi) -> None:
    created = {"prefix": "tg_w", "name": None, "api_key": "tg_w.s", "type": "WORKSPACE_MANAGE_ALL", "role": "viewer"}
    api.answers["POST /v1/api_keys"] = created
    assert done("create", "--type", "WORKSPACE_MANAGE_ALL", "--role", "viewer", "--only-key") == "tg_w.s\n"
    assert api.bodies("POST") == [{"type": "WORKSPACE_MANAGE_ALL", "role": "viewer"}]
    assert run("create", "--type", "WORKSPACE_MANAGE_ALL", "--role", "root").exit_code == 2


def test_revoke_asks_as_delete_does(api: FakeApi) -> None:
    api.answers[f"DELETE {KEYS}/tg_abc"] = {"prefix": "tg_abc", "deleted": True}
    refused = run("revoke", "tg_abc", "--group", "g")
    assert (refused.exit_code, "--yes is needed" in refused.output) == (2, True)
    assert api.bodies("DELETE") == []
    done("revoke", "tg_abc", "--group", "g", "--yes")
    assert len(api.bodies("DELETE")) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--expires", "tomorrow"), "or so long from now (12h, 30d), or never"),
        (("--allow-ip", "any", "--allow-ip", "203.0.113.1"), "any stands alone"),
        (("--rate-limit", "REQUEST/DAY=5"), "expected TYPE/UNIT=N"),
        (("--rate-limit", "a/b:REQUEST/MINUTE=5"), "expected TYPE/UNIT=N"),
        (("--spend-limit", "DAY=5"), "expected UNIT=AMOUNT,CURRENCY"),
    ],
)
def test_wrong_settings_are_refused_before_a_call(api: FakeApi, flags: tuple[str, ...], message: str) -> None:
    refused = run("create", "--group", "g", *flags)
    assert refused.exit_code == 2
    assert message in refused.output
    assert api.requests == []


def test_settings_are_not_for_keys_of_the_workspace(api: FakeApi) -> None:
    refused = run("create", "--type", "WORKSPACE_INVOKE", "--expires", "1d")
    assert refused.exit_code == 2
    assert "only a group's key has settings" in refused.output
    assert "nothing to change: give --group" in run("set", "tg_abc").output
    assert api.requests == []


NOW = datetime(2026, 11, 24, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "expires_at", "text"),
    [
        ("ACTIVE", None, "active"),
        ("ACTIVE", "2026-11-27T12:00:00.000Z", "active, expires in 3 d"),
        ("REPLACED", "2026-11-24T12:50:00.000Z", "rotated, ends in 50 min"),
        ("DISABLED", "2026-11-27T12:00:00.000Z", "disabled"),
        ("EXPIRED", "2026-11-23T12:00:00.000Z", "expired"),
    ],
)
def test_state_is_told_in_words(state: str, expires_at: str | None, text: str) -> None:
    assert state_text({"state": state, "expires_at": expires_at}, NOW) == text


def test_lists_show_states_and_an_older_control_shows_none(api: FakeApi) -> None:
    api.answers[f"GET {KEYS}"] = page(KEY, KEY | {"prefix": "tg_off", "state": "DISABLED"}, _older(KEY))
    header, *rows = done("list", "--group", "g").splitlines()
    assert header.split() == ["PREFIX", "NAME", "STATE", "CREATED", "LAST", "USED"]
    assert [row.split()[2] for row in rows] == ["active", "disabled", "-"]


def _older(key: dict[str, Any]) -> dict[str, Any]:
    return {name: key[name] for name in ("prefix", "name", "created_at", "last_used_at")}
