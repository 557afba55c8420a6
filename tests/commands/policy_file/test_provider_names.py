"""Aliases of providers, and regions, in policy files (docs/reference/policy-files.md#the-file)."""

import asyncio
from dataclasses import replace

import pytest

from commands.policy_file.document import IllegalDocumentError, read_document, read_value
from commands.policy_file.export import export_value
from commands.policy_file.planning import Consent, Plan, make_plan
from commands.policy_file.reading import read_provider_names, read_workspace
from commands.policy_file.rendering import plan_text
from policy.endpoints import provider_names
from tests.commands.policy_file.workspaces import MINE, Item, apply_text, plan_of, text_of
from tests.fakes.workspace_api import WorkspaceApi

VALUES = {"s": "value"}
CLOUD = {"project_id": "p", "location": "l"}


def file_of(target: Item, **more: str) -> Item:
    secrets = [{"name": "s", "value_from": {"env": "S"}}]
    endpoint = {"slug": "acme/a", **more, "target": {"secret": "s", "target_model": "m", **target}}
    return {"version": 1, "name": MINE, "secrets": secrets, "endpoints": [endpoint]}


async def planned(api: WorkspaceApi, document: Item) -> Plan:
    return (await plan_of(api, text_of(document), Consent(), VALUES))[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"provider": "OPENAI"}, {"provider": "VENDOR_B"}),
        ({"provider": "VENDOR_A"}, {"provider": "ANTHROPIC"}),
        ({"provider": "VERTEX", "vertex_config": CLOUD}, {"provider": "VENDOR_C", "vendor_c_config": CLOUD}),
    ],
)
def test_another_name_changes_once_and_is_exported_as_written(one: Item, other: Item) -> None:
    async def run() -> None:
        api = WorkspaceApi()
        for target in (one, other):
            document = file_of(target)
            plan = await planned(api, document)
            assert len([change for change in plan.changes if change.kind == "endpoint"]) == 1
            await apply_text(api, text_of(document), Consent(), VALUES)
            assert (await planned(api, document)).changes == ()
            exported, _rest = export_value(await read_workspace(api, {}), MINE)
            assert exported["endpoints"] == document["endpoints"]
            read_value(exported)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ({"provider": "VERTEX", "vendor_c_config": CLOUD}, "VERTEX needs vertex_config"),
        ({"provider": "VENDOR_C", "vertex_config": CLOUD}, "VENDOR_C needs vendor_c_config"),
        ({"provider": "OPENAI", "base_url": "https://x.example"}, "OPENAI has no field base_url"),
        ({"provider": "openai"}, "must be one of PLATFORM"),
    ],
)
def test_fields_are_those_beside_the_name(target: Item, says: str) -> None:
    with pytest.raises(IllegalDocumentError) as caught:
        read_value(file_of(target))
    assert says in str([problem.message for problem in caught.value.placed])


@pytest.mark.parametrize(("name", "says"), [("XAI", "use OPENAI_COMPATIBLE"), ("HOUSE", "must be one of PLATFORM")])
def test_a_name_that_control_does_not_know_is_refused_by_the_plan(name: str, says: str) -> None:
    plan = asyncio.run(planned(WorkspaceApi(), file_of({"provider": name})))
    assert len(plan.refusals) == 1
    assert says in plan.refusals[0]


def test_control_is_asked_for_the_aliases_of_its_setting() -> None:
    async def run() -> Plan:
        api = WorkspaceApi()
        api.providers = provider_names("HOUSE=PLATFORM_MODEL_API")
        document = read_document(text_of(file_of({"provider": "HOUSE"})))
        workspace = await read_workspace(api, VALUES)
        return make_plan(
            document, replace(workspace, providers=await read_provider_names(api)), Consent(), frozenset(VALUES)
        )

    plan = asyncio.run(run())
    assert not plan.refusals
    assert "provider: HOUSE" in plan_text(plan, ())


def test_a_region_is_written_once_exported_and_never_changed() -> None:
    async def run() -> None:
        api = WorkspaceApi()
        document = file_of({"provider": "OPENAI"}, region="EU")
        assert "region: EU" in plan_text(await planned(api, document), ())
        await apply_text(api, text_of(document), Consent(), VALUES)
        for same in (document, file_of({"provider": "OPENAI"})):
            plan = await planned(api, same)
            assert (plan.changes, plan.refusals) == ((), ())
        exported, _rest = export_value(await read_workspace(api, {}), MINE)
        assert exported["endpoints"] == document["endpoints"]
        (refusal,) = (await planned(api, file_of({"provider": "OPENAI"}, region="US"))).refusals
        assert refusal == "endpoint acme/a: its region is EU and cannot change; delete the endpoint and create it again"

    asyncio.run(run())
