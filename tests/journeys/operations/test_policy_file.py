"""A policy file on the running product: plan, apply, a kill in the middle, drift, another owner, another tenant."""

import asyncio
import json
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policy.limits.kinds import USAGE_TYPES, LimitType, Unit
from tests.journeys.conftest import Stage
from tests.journeys.product import COMMAND, OperatorClient, models

CREDENTIAL = "sk-policy-file-journey"
GROUPS = 40
"""Number of groups: so many that a kill comes in the middle."""


@dataclass
class Tenant:
    """A workspace, and the commands of its operator on another machine: by URL and key."""

    stage: Stage
    prefix: str
    key: str

    @property
    def operator(self) -> OperatorClient:
        return OperatorClient(self.stage.session, self.stage.product, self.key)

    async def begin(self, *words: str) -> asyncio.subprocess.Process:
        settings = {"TOLLGATE_URL": self.stage.product.control, "TOLLGATE_API_KEY": self.key, "OPENAI": CREDENTIAL}
        environment = {**self.stage.product.environment, **settings}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return await asyncio.create_subprocess_exec(*COMMAND, *words, env=environment, **pipes)  # type: ignore[arg-type]

    async def run(self, *words: str) -> tuple[int | None, str]:
        """The exit status, and all that the command wrote."""
        process = await self.begin(*words)
        out, err = await process.communicate()
        text = out.decode() + err.decode()
        assert CREDENTIAL not in text
        return process.returncode, text

    async def did(self, *words: str) -> str:
        status, text = await self.run(*words)
        assert status == 0, text
        return text

    async def got(self, *words: str) -> Any:
        return json.loads(await self.did(*words, "--json"))

    def policy(self, to: Path, name: str = "journey", tokens: int = 1000, customers: int = GROUPS) -> str:
        """The path of a policy file: a secret, an endpoint, a webhook, and customers below a company, CASCADING."""
        slug = f"{self.prefix}/chat"
        limited = [{"slug": slug, "usage_limits": [{"type": "TOKEN", "unit": "DAY", "threshold": tokens}]}]
        below = [{"external_entity_id": f"customer-{number}", "models": limited} for number in range(customers)]
        company = {"external_entity_id": "company", "limit_enforcement": "CASCADING", "models": limited}
        document = {
            "version": 1,
            "name": name,
            "secrets": [{"name": "openai", "value_from": {"env": "OPENAI"}}],
            "endpoints": [{"slug": slug, "target": {"provider": "VENDOR_B", "secret": "openai", "target_model": "m"}}],
            "webhooks": [{"url": "https://93.184.215.14/hook", "description": "billing", "enabled": False}],
            "groups": [company | {"groups": below}],
        }
        to.write_text(json.dumps(document, indent=1))  # JSON is YAML
        return str(to)


async def tenant(stage: Stage, name: str) -> Tenant:
    words = ("workspace", "create", name, "--prefix", name, "--data", str(stage.product.data))
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *words, env=stage.product.environment, stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    return Tenant(stage, name, json.loads(out)["api_key"])


@pytest.fixture
async def acme(stage: Stage) -> Tenant:
    return await tenant(stage, f"{stage.name}-acme")


async def test_apply_goes_on_after_a_kill_and_then_has_nothing_to_do(acme: Tenant, tmp_path: Path) -> None:
    file = acme.policy(tmp_path / "policy.yaml")
    status, planned = await acme.run("plan", file)
    assert (status, "company" in planned) == (2, True)
    applying = await acme.begin("apply", file)

    async def has_some() -> bool:
        return len((await acme.operator.call("GET", "/v1/gateway/groups"))["items"]) > 1

    await acme.stage.until(has_some, "some groups are there")
    if applying.returncode is None:
        applying.send_signal(signal.SIGKILL)
    await applying.communicate()
    await acme.did("apply", file)
    assert (await acme.run("plan", file))[0] == 0
    groups = (await acme.got("groups", "list"))["items"]
    assert len(groups) == GROUPS + 1
    assert {group["managed_by"]["name"] for group in groups} == {"journey"}
    (webhook,) = (await acme.got("webhooks", "list"))["items"]
    assert (webhook["enabled"], webhook["managed_by"]["drifted"]) == (False, False)
    exported = tmp_path / "exported.yaml"
    exported.write_text(await acme.did("export"))
    assert (await acme.run("plan", str(exported)))[0] == 0


async def test_settings_of_keys_are_planned_applied_and_exported(acme: Tenant, tmp_path: Path) -> None:
    slug = f"{acme.prefix}/chat"
    limit = {"type": "REQUEST", "unit": "SECOND", "threshold": 5}
    settings = {"expires_at": "2099-01-31", "allowed_ips": ["203.0.113.7"], "slugs": [slug], "rate_limits": [limit]}
    group = {"external_entity_id": "company", "models": [{"slug": slug}], "keys": [{"name": "ci", **settings}]}
    file = tmp_path / "keys.yaml"
    file.write_text(json.dumps({"version": 1, "name": "keys", "groups": [group]}))

    refused, text = await acme.run("apply", str(file))
    assert (refused, "--new-keys FILE is needed" in text) == (2, True)
    await acme.did("apply", str(file), "--new-keys", str(tmp_path / "new"))
    new = json.loads((tmp_path / "new").read_text())
    assert (await acme.run("plan", str(file)))[0] == 0
    rotated = await acme.got("keys", "rotate", new["prefix"], "--overlap", "1h")
    await acme.did("keys", "disable", rotated["prefix"])
    planned = await acme.got("plan", str(file))
    assert (planned["changes"], planned["notes"]) == ([], []), "neither undoes the rotation nor enables the key"

    exported = tmp_path / "exported.yaml"
    exported.write_text(await acme.did("export", "--name", "keys"))
    assert "203.0.113.7/32" in exported.read_text()
    assert new["api_key"] not in exported.read_text()
    assert (await acme.run("plan", str(exported)))[0] == 0
    group["keys"] = [{"name": "ci", "slugs": ["any"], "disabled": False}]
    file.write_text(json.dumps({"version": 1, "name": "keys", "groups": [group]}))
    await acme.did("apply", str(file))
    key = await acme.got("keys", "get", rotated["prefix"], "--group", "company")
    assert (key["slugs"], key["state"], key["rate_limits"]) == (None, "ACTIVE", [limit])


async def test_limits_of_every_kind_are_planned_applied_and_exported(acme: Tenant, tmp_path: Path) -> None:
    slug = f"{acme.prefix}/chat"
    usages = [(kind_type, unit) for kind_type in USAGE_TYPES for unit in Unit if not unit.is_rolling]
    kinds = [*((kind_type, Unit.MINUTE) for kind_type in LimitType), *usages]
    limits = [(kind_type.value, unit.value, threshold) for threshold, (kind_type, unit) in enumerate(kinds)]
    group = {"external_entity_id": "company", "models": models(slug, *limits)}
    file = tmp_path / "kinds.yaml"
    file.write_text(json.dumps({"version": 1, "name": "kinds", "groups": [group]}))

    status, planned = await acme.run("plan", str(file))
    assert status == 2
    assert all(kind_type in planned and unit in planned for kind_type, unit in kinds)
    await acme.did("apply", str(file))
    assert (await acme.got("groups", "get", "company"))["models"] == group["models"]
    exported = tmp_path / "exported.yaml"
    exported.write_text(await acme.did("export"))
    assert (await acme.run("plan", str(exported)))[0] == 0


async def test_spend_limits_are_planned_applied_and_exported_in_either_currency(acme: Tenant, tmp_path: Path) -> None:
    file = tmp_path / "spend.yaml"

    def write(amount: str, currency: str) -> str:
        limit = {"unit": "DAY", "amount": amount, "currency": currency}
        both: dict[str, Any] = {"models": models(f"{acme.prefix}/chat"), "spend_limits": [limit]}
        kid = both | {"external_entity_id": "kid"}
        top = both | {"external_entity_id": "top", "limit_enforcement": "CASCADING", "groups": [kid]}
        file.write_text(json.dumps({"version": 1, "name": "spend", "groups": [top]}))
        return str(file)

    await acme.did("apply", write("100", "EUR"))
    assert (await acme.run("plan", write("100.00", "EUR")))[0] == 0
    exported = tmp_path / "exported.yaml"
    exported.write_text(await acme.did("export"))
    assert (await acme.run("plan", str(exported)))[0] == 0
    status, planned = await acme.run("plan", write("90", "USD"))
    assert (status, planned.count("spend per DAY: 100.00 EUR SOFT → 90.00 USD SOFT")) == (2, 2)
    await acme.did("apply", str(file))

    group = await acme.got("groups", "get", "kid")
    limit = {"unit": "DAY", "amount": "90.00", "currency": "USD", "enforcement": "SOFT"}
    assert group["spend_limits"] == [limit]
    assert [item["amount"] for item in group["effective_spend_limits"]] == ["90.00", "90.00"]
    await acme.did("groups", "set", "kid", "--spend-limit", "DAY=none", "--spend-limit", "MONTH=1000,USD")
    assert [item["unit"] for item in (await acme.got("groups", "get", "kid"))["spend_limits"]] == ["MONTH"]

    async def is_counted() -> bool:
        return (await acme.operator.ask("GET", f"/v1/gateway/groups/{group['id']}/spend"))[0] == 200

    await acme.stage.until(is_counted, "what is spent is known")
    assert [item["spent"] for item in (await acme.got("groups", "spend", "kid"))["items"]] == ["0.00", "0.00"]


@pytest.mark.soak
async def test_apply_refuses_drift_and_other_owners_and_prunes_what_is_its_own(acme: Tenant, tmp_path: Path) -> None:
    file = acme.policy(tmp_path / "policy.yaml", customers=2)
    await acme.did("apply", file)
    await acme.did("groups", "set", "customer-1", "--name", "by hand")
    status, output = await acme.run("apply", acme.policy(tmp_path / "lower.yaml", tokens=500, customers=2))
    assert (status, "customer-1" in output, "--overwrite-drift" in output) == (1, True, True)
    await acme.did("apply", str(tmp_path / "lower.yaml"), "--overwrite-drift")
    company = await acme.got("groups", "get", "company")
    assert company["models"][0]["usage_limits"][0]["threshold"] == 500
    status, output = await acme.run("apply", acme.policy(tmp_path / "other.yaml", name="other", customers=2))
    assert (status, "journey" in output) == (1, True)
    fewer = acme.policy(tmp_path / "fewer.yaml", tokens=500, customers=1)
    assert (await acme.run("plan", fewer))[0] == 0, "without --prune nothing goes"
    await acme.did("apply", fewer, "--prune", "--yes")
    names = {group["metadata"]["external_entity_id"] for group in (await acme.got("groups", "list"))["items"]}
    assert names == {"company", "customer-0"}


async def test_plan_tells_who_changed_what_and_how_many_keys_go(acme: Tenant, tmp_path: Path) -> None:
    file = acme.policy(tmp_path / "policy.yaml", customers=1)
    await acme.did("apply", file)
    await acme.did("groups", "set", "customer-0", "--limit", f"{acme.prefix}/chat:TOKEN/DAY=7")
    await acme.did("keys", "create", "--group", "customer-0")
    status, output = await acme.run("plan", file)
    assert status == 1, output
    key = acme.key.partition(".")[0]
    assert f"! group customer-0, by {key[:15]}" in output
    assert f"{acme.prefix}/chat TOKEN per DAY: 7 → 1000" in output
    fewer = acme.policy(tmp_path / "fewer.yaml", customers=0)
    status, output = await acme.run("plan", fewer, "--prune", "--overwrite-drift")
    assert (status, "- group customer-0\n    with 1 key\n" in output) == (2, True)
    assert "1 to delete, with 1 key;" in output


async def test_file_of_another_tenant_changes_nothing(acme: Tenant, tmp_path: Path) -> None:
    await acme.did("apply", acme.policy(tmp_path / "policy.yaml", customers=1))
    before = await acme.got("endpoints", "list")
    other = await tenant(acme.stage, f"{acme.stage.name}-other")
    status, output = await other.run("apply", str(tmp_path / "policy.yaml"))
    assert (status, "prefix" in output) == (1, True)
    assert await acme.got("endpoints", "list") == before
    assert (await other.got("endpoints", "list"))["items"] == []
