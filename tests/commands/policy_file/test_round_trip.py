"""Properties of plan, apply and export over random workspaces, against control's rules in memory."""

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from commands.errors import AwayError
from commands.output import json_text
from commands.policy_file.applying import StoppedError
from commands.policy_file.document import read_document
from commands.policy_file.export import export_value
from commands.policy_file.planning import Consent
from commands.policy_file.reading import read_keys, read_workspace
from commands.policy_file.values import Group, OwnedResource, Workspace
from commands.policy_file.yaml_text import yaml_of
from tests.commands.policy_file.workspaces import ALL, MINE, Item, apply_text, plan_of, policies, text_of
from tests.fakes.workspace_api import WorkspaceApi

OWNERS = st.sampled_from([MINE, MINE, None])
BEFORE = {f"s{n}": "old" for n in range(3)}
VALUES = {f"s{n}": "new" if n else "old" for n in range(3)}


def keys() -> st.SearchStrategy[Item]:
    """Settings of a key as the API shows them, with a slug that its group has lost."""
    spend = {"unit": "DAY", "amount": "1.50", "currency": "EUR", "enforcement": "HARD"}
    return st.fixed_dictionaries(
        {"name": st.sampled_from([None, "ci", "tg_0"]), "state": st.sampled_from(["ACTIVE", "ACTIVE", "REPLACED"])},
        optional={
            "expires_at": st.just("2027-01-31T08:00:00.000Z"),
            "disabled": st.booleans(),
            "allowed_ips": st.just(["203.0.113.0/24", "2001:db8::/32"]),
            "slugs": st.just(["acme/lost", "acme/a"]),
            "rate_limits": st.just([{"type": "TOKEN", "unit": "SECOND", "threshold": 0}]),
            "spend_limits": st.just([spend]),
        },
    )


async def workspace_with(document: Item, owner: str | None) -> WorkspaceApi:
    api = WorkspaceApi()
    plan = await apply_text(api, text_of(document), ALL, BEFORE)
    assert not plan.refusals
    for kind in api.items.values():
        for item in kind.values():
            item["owner"] = owner
    api.calls.clear()
    return api


@settings(max_examples=12, deadline=None)
@given(before=policies(), after=policies())
def test_every_step_is_legal_and_applying_again_does_nothing(before: Item, after: Item) -> None:
    async def run() -> None:
        api = await workspace_with(before, MINE)
        fresh = WorkspaceApi()
        first = await apply_text(api, text_of(after), ALL, VALUES)
        assert not first.refusals
        await apply_text(fresh, text_of(after), Consent(), VALUES)
        assert api.state() == fresh.state()  # --prune: nothing else is left
        again, _ = await plan_of(api, text_of(after), ALL, VALUES)
        assert (again.changes, again.refusals, again.notes) == ((), (), ())

    asyncio.run(run())


@settings(max_examples=12, deadline=None)
@given(before=policies(), after=policies(), stop=st.integers(0, 12))
def test_applying_again_after_a_crash_reaches_the_same_end(before: Item, after: Item, stop: int) -> None:
    async def run() -> None:
        api = await workspace_with(before, MINE)
        fresh = WorkspaceApi()
        api.away_after = stop
        try:
            await apply_text(api, text_of(after), Consent(prune=True), VALUES)
        except StoppedError:
            api.away_after = None
            plan = await apply_text(api, text_of(after), Consent(prune=True), VALUES)
            assert not plan.refusals
        await apply_text(fresh, text_of(after), Consent(), VALUES)
        assert api.state() == fresh.state()

    asyncio.run(run())


@settings(max_examples=12, deadline=None)
@given(document=policies(), data=st.data())
def test_plan_of_an_export_is_empty(document: Item, data: st.DataObject) -> None:
    async def run() -> None:
        api = await workspace_with(document, None)
        for kind in api.items.values():
            for item in kind.values():
                item["owner"] = data.draw(st.sampled_from([MINE, None, "other"]))
        for number, key in enumerate(data.draw(st.lists(keys(), max_size=6))):
            if api.items["groups"]:
                group = data.draw(st.sampled_from(sorted(api.items["groups"])))
                api.keys[f"tg_{number}"] = api.new_key(f"tg_{number}", group, None) | key
        value, left_out = export_value(replace(await read_workspace(api, {}), keys=await read_keys(api)), MINE)
        plan, _ = await plan_of(api, yaml_of(value), Consent(prune=True), {})
        assert (plan.changes, plan.refusals) == ((), ())
        assert left_out == sum(item["owner"] == "other" for kind in api.items.values() for item in kind.values())

    asyncio.run(run())


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40))
@example("\x85 next line")
@example("a\r\nb  \u2028 ")
@example("\U0001f600 \U000e0001 \U000f0000 \U0010fffd")
def test_any_name_is_the_same_after_an_export(name: str) -> None:
    group = Group(name, name)
    value, _ = export_value(Workspace(groups={name: OwnedResource("grp_1", group)}), MINE)
    assert read_document(yaml_of(value)).groups == (group,)
    assert read_document(json_text(value)).groups == (group,), "the same file as JSON"


@settings(max_examples=12, deadline=None)
@given(before=policies(), after=policies(), data=st.data())
def test_what_others_own_is_never_touched(before: Item, after: Item, data: st.DataObject) -> None:
    """Whatever the consent: with refusals nothing is written; else only what is the file's, or was nobody's."""

    async def run() -> None:
        api = await workspace_with(before, None)
        for name, kind in api.items.items():
            for key, item in kind.items():
                item["owner"] = data.draw(st.sampled_from([MINE, MINE, None, "other"]))
                item["applied"] = item["updated"]
                if data.draw(st.integers(0, 4)) == 0:
                    api.write(name, key)
        consent = Consent(*(data.draw(st.booleans()) for _ in range(3)))
        was = {name: {key: dict(item) for key, item in kind.items()} for name, kind in api.items.items()}
        plan = await apply_text(api, text_of(after), consent, VALUES)
        if plan.refusals:
            assert api.calls == []
        for name, kind in was.items():
            for key, item in kind.items():
                _check_untouched(item, api.items[name].get(key), consent)

    asyncio.run(run())


def _check_untouched(before: Item, after: Any, consent: Consent) -> None:
    owner = before["owner"]
    drifted = before["applied"] != before["updated"]
    if owner == "other" or (owner is None and not consent.adopt):
        assert after == before
    if owner == MINE and drifted and not consent.overwrite_drift:
        assert after == before
    if owner is None or not consent.prune:
        assert after is not None


def test_a_lost_connection_is_told_with_what_was_done() -> None:
    second = {"url": "https://b.example", "description": "two\nlines"}
    document = {"version": 1, "name": MINE, "webhooks": [{"url": "https://a.example"}, second]}

    async def run() -> str:
        api = WorkspaceApi()
        api.away_after = 1
        try:
            await apply_text(api, text_of(document), Consent(), {})
        except StoppedError as error:
            return str(error)
        raise AssertionError(AwayError)

    message = asyncio.run(run())
    assert message.splitlines() == [
        "create webhook https://b.example (two\N{REPLACEMENT CHARACTER}lines): the connection broke",
        "1 of 2 steps are done. Mend the cause and apply again: it does the rest",
    ]
