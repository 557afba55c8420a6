"""Keys of groups in policy files: what is set on them changes, and nothing that the file does not say."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from commands.connection import Connection
from commands.policy_file.document import read_document
from commands.policy_file.errors import PolicyFileError
from commands.policy_file.planning import Consent, Plan
from commands.policy_file.rendering import plan_text
from commands.policy_file.steps import steps_of
from control.operator.cli import tollgate
from tests.commands.policy_file.workspaces import MINE, Item, apply_text, plan_of
from tests.fakes.workspace_api import WorkspaceApi

NOTHING = Consent()
ADOPT = Consent(adopt=True)
EUR = {"unit": "DAY", "amount": "5.00", "currency": "EUR", "enforcement": "SOFT"}
USD = EUR | {"currency": "USD"}


def policy(*keys: Item, spend_limits: list[Item] | None = None, name: str = MINE) -> str:
    group: Item = {"external_entity_id": "g", "models": [{"slug": "acme/a"}, {"slug": "acme/b"}]}
    group |= {"spend_limits": spend_limits or [], "keys": list(keys)}
    return json.dumps({"version": 1, "name": name, "groups": [group]}, indent=1)  # JSON is YAML


async def workspace(*keys: Item, spend_limits: list[Item] | None = None) -> WorkspaceApi:
    """The group of `policy` with these keys; each has `prefix` and `name`."""
    api = WorkspaceApi()
    await apply_text(api, policy(spend_limits=spend_limits), NOTHING, {})
    (group,) = api.items["groups"]
    for key in keys:
        api.keys[key["prefix"]] = api.new_key(key["prefix"], group, key.get("name")) | key
    api.calls.clear()
    return api


def planned(api: WorkspaceApi, text: str, consent: Consent = NOTHING) -> Plan:
    return asyncio.run(plan_of(api, text, consent, {}))[0]


def applied(api: WorkspaceApi, text: str, consent: Consent = NOTHING) -> Plan:
    return asyncio.run(apply_text(api, text, consent, {}))


def problems(*keys: Item) -> str:
    with pytest.raises(PolicyFileError) as raised:
        read_document(policy(*keys))
    return str(raised.value)


CI: Item = {"prefix": "tg_1", "name": "ci"}
LIMITED: Item = {
    "name": "ci",
    "expires_at": "2027-01-31",
    "allowed_ips": ["203.0.113.7", "2001:DB8::/32"],
    "slugs": ["acme/b", "acme/a"],
    "rate_limits": [{"type": "REQUEST", "unit": "SECOND", "threshold": 5}],
    "spend_limits": [{"unit": "MONTH", "amount": 100, "currency": "EUR", "enforcement": "HARD"}],
}


def test_everything_that_can_be_set_is_set_once() -> None:
    api = asyncio.run(workspace(CI))
    plan = applied(api, policy(LIMITED))
    assert [line.strip() for line in plan_text(plan, ()).splitlines()[:6]] == [
        "~ key g/ci",
        "expires_at: never \N{RIGHTWARDS ARROW} 2027-01-31T00:00:00.000Z",
        "allowed_ips: any \N{RIGHTWARDS ARROW} 2001:db8::/32, 203.0.113.7/32",
        "slugs: any \N{RIGHTWARDS ARROW} acme/a, acme/b",
        "rate_limits: - \N{RIGHTWARDS ARROW} 5 REQUEST per SECOND",
        "spend_limits: - \N{RIGHTWARDS ARROW} 100.00 EUR HARD per MONTH",
    ]
    key = api.keys["tg_1"]
    assert key["allowed_ips"] == ["2001:db8::/32", "203.0.113.7/32"]
    assert (key["expires_at"], key["name"], key["disabled"]) == ("2027-01-31T00:00:00.000Z", "ci", False)
    assert planned(api, policy(LIMITED)).changes == ()


def test_what_the_file_leaves_out_stays_as_somebody_set_it() -> None:
    incident = {"disabled": True, "expires_at": "2027-01-01T00:00:00.000Z", "allowed_ips": ["203.0.113.0/24"]}
    api = asyncio.run(workspace(CI | incident))
    applied(api, policy({"name": "ci", "slugs": ["acme/a"]}))
    assert api.keys["tg_1"].items() >= (incident | {"slugs": ["acme/a"]}).items()
    applied(api, policy({"name": "ci", "expires_at": "never", "allowed_ips": ["any"], "slugs": ["any"]}))
    assert [api.keys["tg_1"][name] for name in ("expires_at", "allowed_ips", "slugs")] == [None, None, None]
    assert api.keys["tg_1"]["disabled"]
    applied(api, policy({"name": "ci", "disabled": False}))
    assert not api.keys["tg_1"]["disabled"]


def test_a_key_that_leaves_the_file_stays_and_the_plan_says_so() -> None:
    api = asyncio.run(workspace(CI, {"prefix": "tg_2", "name": "old", "disabled": True}))
    plan = applied(api, policy({"name": "ci"}), Consent(prune=True))
    assert (plan.changes, api.calls) == ((), [])
    assert plan.notes == ("1 keys of groups whose keys are listed are not in the file; they stay",)
    assert sorted(api.keys) == ["tg_1", "tg_2"]


def test_a_rotation_is_never_undone() -> None:
    ending = CI | {"state": "REPLACED", "expires_at": "2026-12-01T00:00:00.000Z"}
    api = asyncio.run(workspace(ending, {"prefix": "tg_2", "name": "ci"}))
    applied(api, policy({"name": "ci", "expires_at": "2027-01-31"}))
    assert api.keys["tg_1"] == ending | api.keys["tg_1"]
    assert api.keys["tg_2"]["expires_at"] == "2027-01-31T00:00:00.000Z"
    plan = planned(api, policy({"prefix": "tg_1", "expires_at": "never"}))
    assert (plan.changes, plan.refusals) == ((), ())
    assert plan.notes[0] == "key g/tg_1: it was rotated, and stays as it is; name the key that took its place"


def test_a_name_of_several_keys_is_refused_and_a_prefix_is_not() -> None:
    api = asyncio.run(workspace(CI, CI | {"prefix": "tg_2"}))
    assert planned(api, policy({"name": "ci", "slugs": ["acme/a"]})).refusals == (
        "key g/ci: several keys of the group have this name; give a prefix: tg_1, tg_2",
    )
    applied(api, policy({"prefix": "tg_2", "slugs": ["acme/a"]}))
    assert (api.keys["tg_1"]["slugs"], api.keys["tg_2"]["slugs"]) == (None, ["acme/a"])
    assert planned(api, policy({"prefix": "tg_3"})).refusals == (
        "key g/tg_3: there is no such key; only a key with a name can be created",
    )


def test_keys_of_groups_of_others_are_not_touched() -> None:
    api = asyncio.run(workspace(CI))
    (group,) = api.items["groups"].values()
    group["owner"] = None
    limited = policy({"name": "ci", "slugs": ["acme/a"]})
    assert planned(api, limited).refusals == ("key g/ci: no policy file owns its group; --adopt takes that over",)
    assert planned(api, limited, ADOPT).refusals == ()
    group["owner"] = "other"
    assert "key g/ci: its group is owned by other" in planned(api, limited, ADOPT).refusals
    assert api.calls == []


def test_a_slug_that_the_group_may_not_call_is_refused_unless_nothing_changes() -> None:
    api = asyncio.run(workspace(CI | {"slugs": ["acme/lost"]}))
    assert planned(api, policy({"name": "ci", "slugs": ["acme/lost"]})).refusals == ()
    assert planned(api, policy({"name": "ci", "slugs": ["acme/c"]})).refusals == (
        "key g/ci: its group may not call acme/c",
    )


def test_currency_of_a_tree_changes_with_its_keys() -> None:
    api = asyncio.run(workspace(CI | {"spend_limits": [EUR]}, spend_limits=[EUR]))
    text = policy({"name": "ci", "spend_limits": [USD]}, spend_limits=[USD])
    applied(api, text)
    assert api.keys["tg_1"]["spend_limits"] == [USD]
    assert planned(api, text).changes == ()


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ({}, "groups.0.keys.0: a key is known by its name or by its prefix"),
        ({"name": "a", "prefix": "tg_1"}, "give one of them"),
        ({"name": "a", "expires_at": "tomorrow"}, "keys.0.expires_at: must be ISO 8601"),
        ({"name": "a", "expires_at": "9999-12-31T23:59:59-14:00"}, "keys.0.expires_at: must be ISO 8601"),
        ({"name": "a", "allowed_ips": ["203.0.113.1/24"]}, "keys.0.allowed_ips: has bits of a host"),
        ({"name": "a", "allowed_ips": ["any", "203.0.113.1"]}, "keys.0.allowed_ips: any stands alone"),
        ({"name": "a", "allowed_ips": []}, "keys.0.allowed_ips: must not be empty"),
        ({"name": "a", "slugs": []}, "keys.0.slugs: must not be empty; [any] takes the restriction away"),
        ({"name": "a", "rate_limits": [{"type": "TOKEN", "unit": "DAY", "threshold": 1}]}, "unit: must be one of"),
        ({"name": "a", "spend_limits": [EUR, dict(EUR)]}, "keys.0.spend_limits: at most one spend limit per unit"),
        ({"name": "a", "api_key": "tg_1.secret"}, "keys.0.api_key: unknown"),
    ],
)
def test_wrong_keys_are_named_by_line_and_field(key: Item, problem: str) -> None:
    message = problems(key)
    assert message.startswith("line ")
    assert problem in message


def test_a_key_is_given_once() -> None:
    assert "keys.1: the key ci is given twice" in problems({"name": "ci"}, {"name": "ci"})


def test_a_name_that_reads_as_the_prefix_of_another_key_is_told_from_it() -> None:
    api = asyncio.run(workspace({"prefix": "tg_1", "name": None}, {"prefix": "tg_2", "name": "tg_1"}))
    applied(api, policy({"prefix": "tg_1", "slugs": ["acme/a"]}, {"name": "tg_1", "slugs": ["acme/b"]}), ADOPT)
    assert [api.keys[prefix]["slugs"] for prefix in ("tg_1", "tg_2")] == [["acme/a"], ["acme/b"]]


def test_a_key_that_the_file_names_in_both_ways_is_refused() -> None:
    api = asyncio.run(workspace(CI))
    plan = planned(api, policy({"name": "ci", "slugs": ["acme/a"]}, {"prefix": "tg_1", "slugs": ["acme/b"]}))
    assert plan.refusals == ("key g/tg_1: the file names it by name and by prefix; leave one out",)


def run(api: WorkspaceApi, text: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    def connected(_self: Connection, work: Any) -> Any:
        return asyncio.run(work(api))

    monkeypatch.setattr(Connection, "run", connected)
    return CliRunner().invoke(tollgate, [*words, "-"], input=text, env={"TOLLGATE_API_KEY": "tg_x"})


def test_a_missing_key_is_created_only_into_a_private_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    api = asyncio.run(workspace())
    text = policy({"name": "ci", "slugs": ["acme/a"]})
    assert "+ key g/ci" in run(api, text, monkeypatch, "plan").output
    refused = run(api, text, monkeypatch, "apply")
    assert (refused.exit_code, "--new-keys FILE is needed" in refused.output, api.calls) == (2, True, [])
    file = tmp_path / "keys"
    created = run(api, text, monkeypatch, "apply", "--new-keys", str(file))
    assert (created.exit_code, created.output.count(".secret")) == (0, 0)
    (prefix,) = api.keys
    assert json.loads(file.read_text()) == {"prefix": prefix, "key": "g/ci", "api_key": f"{prefix}.secret"}
    assert file.stat().st_mode & 0o777 == 0o600
    assert api.keys[prefix]["slugs"] == ["acme/a"]
    assert run(api, text, monkeypatch, "plan").exit_code == 0


def test_a_new_key_is_not_disabled() -> None:
    api = asyncio.run(workspace())
    plan = planned(api, policy({"name": "ci", "disabled": True}))
    assert plan.refusals == ("key g/ci: a new key is not disabled; leave that out",)
    with pytest.raises(ValueError, match="refusals"):
        steps_of(plan, None)  # type: ignore[arg-type]


def test_an_export_holds_what_is_set_on_keys_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = CI | {"slugs": ["acme/a"]}
    unnamed = {"prefix": "tg_3", "disabled": True}
    ended = {"prefix": "tg_4", "name": "gone", "state": "EXPIRED", "expires_at": "2026-01-01T00:00:00.000Z"}
    api = asyncio.run(workspace(limited, {"prefix": "tg_2", "name": "plain"}, unnamed, ended))
    exported = CliRunner()
    monkeypatch.setattr(Connection, "run", lambda _self, work: asyncio.run(work(api)))
    result = exported.invoke(tollgate, ["export", "--json"], env={"TOLLGATE_API_KEY": "tg_x"})
    assert json.loads(result.stdout)["groups"][0]["keys"] == [
        {"name": "ci", "slugs": ["acme/a"]},
        {"prefix": "tg_3", "disabled": True},
    ]
    assert planned(api, result.stdout).changes == ()
