"""Facts that a plan tells besides its changes: what drifted, by whom and when, and what is lost with groups."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from commands.policy_file.planning import Consent, Plan
from commands.policy_file.reading import read_last_changes, read_losses
from commands.policy_file.rendering import plan_text, plan_value
from commands.policy_file.steps import audit_path, steps_of
from commands.policy_file.values import GroupLosses, LastChange, OwnedResource
from tests.commands.fake_api import FakeApi, page
from tests.commands.policy_file.test_planning import BEFORE, requests, tree
from tests.commands.policy_file.workspaces import MINE, apply_text, plan_of, text_of
from tests.fakes.workspace_api import WorkspaceApi

AUDIT = "GET /v1/audit_events"
OVERWRITE = Consent(prune=True, overwrite_drift=True)
HOSTILE = "grp\x1b[2J"


def plan_after_a_change(consent: Consent, text: str = BEFORE) -> Plan:
    """Something else sets the limit of `kid` from 50 to 7; the file says 50."""

    async def run() -> Plan:
        api = WorkspaceApi()
        await apply_text(api, BEFORE, Consent(), {})
        owner = {key: item["owner"] for key, item in api.items["groups"].items()}
        await apply_text(api, tree([requests(100)], [requests(7)]), Consent(), {})
        for key, item in api.items["groups"].items():
            item["owner"] = owner[key]
            if item["metadata"]["external_entity_id"] == "kid":
                api.write("groups", key)
        return (await plan_of(api, text, consent, {}))[0]

    return asyncio.run(run())


def told(plan: Plan) -> Plan:
    (drift,) = plan.drifts
    return replace(plan, last_changes={(drift.kind, drift.key): LastChange("2026-11-30T12:00:00.000Z", "tg_operator")})


def test_a_refused_plan_shows_what_drifted_and_what_the_file_says() -> None:
    lines = plan_text(told(plan_after_a_change(Consent())), ()).splitlines()
    assert lines[:3] == [
        "Changed by something else since the last apply, and otherwise in the file:",
        "! group kid, by tg_operator, at 2026-11-30T12:00:00.000Z",
        "    acme/a REQUEST per MINUTE: 7 \N{RIGHTWARDS ARROW} 50",
    ]
    assert lines[-2].startswith("refused: group kid: something else changed it")


def test_an_overwritten_drift_is_named_once_with_its_differences() -> None:
    plan = told(plan_after_a_change(OVERWRITE))
    assert [line for line in plan_text(plan, ()).splitlines() if line.startswith(("!", "~", "    "))] == [
        "! group kid, by tg_operator, at 2026-11-30T12:00:00.000Z",
        "~ group kid",
        "    acme/a REQUEST per MINUTE: 7 \N{RIGHTWARDS ARROW} 50",
    ]
    (drifted,) = plan_value(plan, ())["drifted"]
    assert (drifted["key"], drifted["changed_by"], drifted["changed_at"]) == (
        "kid",
        "tg_operator",
        "2026-11-30T12:00:00.000Z",
    )
    assert drifted["differences"] == [{"field": "acme/a REQUEST per MINUTE", "before": 7, "after": 50}]


def test_what_drifted_to_what_the_file_says_is_not_listed() -> None:
    assert plan_after_a_change(Consent(), tree([requests(100)], [requests(7)])).drifts == ()


def test_a_plan_that_deletes_groups_tells_how_many_keys_go() -> None:
    plan = plan_after_a_change(OVERWRITE, text_of({"version": 1, "name": MINE}))
    plan = plan.with_losses({"kid": GroupLosses(2), "root": GroupLosses(0)})
    text = plan_text(plan, ())
    assert "- group kid\n    with 2 keys\n" in text
    assert "- group root\n    with" not in text
    assert "2 to delete, with 2 keys; 0 unchanged." in text
    (kid,) = (change for change in plan_value(plan, ())["changes"] if change["key"] == "kid")
    assert (kid["api_keys"], kid["credit"]) == (2, None)
    assert plan.with_losses({"kid": GroupLosses(2)}).refusals == ()
    assert "with at least 2 keys" in plan_text(plan.with_losses({"kid": GroupLosses(2)}), ())


def test_credit_that_is_left_refuses_the_plan_as_control_would() -> None:
    plan = plan_after_a_change(OVERWRITE, text_of({"version": 1, "name": MINE}))
    plan = plan.with_losses({"kid": GroupLosses(0, "25.00 EUR")})
    assert ["25.00 EUR is left in its balance" in refusal for refusal in plan.refusals] == [True]
    with pytest.raises(ValueError, match="refusals"):
        steps_of(plan, None)  # type: ignore[arg-type]


def test_the_newest_entry_of_the_trail_tells_who_changed_it() -> None:
    entries = [
        {"resource": "groups/grp_9", "actor": "tg_else", "timestamp": "t4"},
        {"resource": "groups/grp_1", "actor": "tg_second", "timestamp": "t3"},
    ]
    older = [{"resource": "groups/grp_1", "actor": "tg_first", "timestamp": "t2"}]

    def answer(_body: Any, query: Any) -> Any:
        return page(*older) if "cursor" in query else page(*entries, cursor="next")

    api = FakeApi({AUDIT: answer})
    drifted = OwnedResource("grp_1", None, MINE, drifted=True, applied_at="t1", updated_at="t3")
    forgotten = OwnedResource("grp_2", None, MINE, drifted=True, applied_at="t0", updated_at="t2")
    resources = {"groups/grp_1": drifted, "groups/grp_2": forgotten}
    assert asyncio.run(read_last_changes(api, resources)) == {
        "groups/grp_1": LastChange("t3", "tg_second"),
        "groups/grp_2": LastChange("t2", None),
    }
    assert api.requests[0][3]["start_time"] == "t0"
    assert asyncio.run(read_last_changes(FakeApi(), resources))["groups/grp_1"] == LastChange("t3", None)


def test_losses_are_the_keys_and_the_credit_of_each_group() -> None:
    groups = "GET /v1/gateway/groups"
    api = FakeApi(
        {
            f"{groups}/grp_1/api_keys": page({"prefix": "a"}, {"prefix": "b"}),
            f"{groups}/grp_1/balance": {"credited": "10.00", "spent": "2.50", "currency": "EUR"},
            f"{groups}/grp_2/api_keys": page(),
            f"{groups}/grp_2/balance": {"credited": "1", "spent": "1.00", "currency": "EUR"},
        }
    )
    losses = asyncio.run(read_losses(api, ["grp_1", "grp_2", "grp_that_is_gone"]))
    assert losses == {"grp_1": GroupLosses(2, "7.50 EUR"), "grp_2": GroupLosses(0)}


def test_names_from_the_server_move_no_cursor() -> None:
    (drift,) = plan_after_a_change(Consent()).drifts
    plan = plan_after_a_change(Consent())
    plan = replace(plan, last_changes={(drift.kind, drift.key): LastChange(HOSTILE, HOSTILE)})
    assert "\x1b" not in plan_text(plan, ())
    assert audit_path(drift).startswith("groups/grp_")
