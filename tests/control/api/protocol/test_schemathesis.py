"""Schemathesis finds no violation in the whole API, and a client generated from the document works against it."""

import asyncio
import dataclasses
import importlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from control.api.protocol.dependencies import DEPENDENCIES
from control.app import LIMITS, build
from control.resources.workspaces import create_workspace, set_workspace
from control.throttle import Allowance, Throttle
from runtime.http.server import FrontRunner
from tests.control.plane import ControlPlane, settings_on
from tests.control.training import report_backend

BIN = Path(sys.executable).parent
QUICK = 2
THOROUGH = 20
"""Examples per operation in `make test`, and in the soak."""
# Excluded: that every body valid by the schema is accepted (a cursor, secret or slug must also exist or be owned), and
# that a new resource is found under every path at once (an environment of a new model points nowhere yet).
EXCLUDED_CHECKS = "positive_data_acceptance,ensure_resource_availability"
# The `Allow` of this path rightly has DELETE: a secret may be called `compare`. (`--checks all`, which is the default,
# would override this.)
CONFIGURATION = """
[[operations]]
include-path = "/v1/secrets/compare"
checks.allow_header_conformance.enabled = false
"""


class UnlimitedWindows:
    """Admits every request. With throttling the fuzzer would receive little but 429."""

    async def admit(self, key_prefix: str, allowance: Allowance) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class Served:
    """A control plane without throttling, and a management key for it."""

    url: str
    key: str
    is_sqlite: bool

    def phases(self, examples: int) -> str:
        """Return schemathesis' phases: in the soak all on SQLite, and edge cases alone on PostgreSQL."""
        if examples == QUICK:
            return "examples,fuzzing,stateful"
        return "examples,coverage,fuzzing,stateful" if self.is_sqlite else "coverage"


@pytest.fixture
async def served(database_url: str) -> AsyncIterator[Served]:
    app = build(settings_on(database_url))
    app[DEPENDENCIES] = dataclasses.replace(app[DEPENDENCIES], throttle=Throttle(UnlimitedWindows()))
    runner = FrontRunner(app, LIMITS)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    store = app[DEPENDENCIES].store
    workspace = await create_workspace(store, "acme", ["acme"])
    await set_workspace(store, "acme", training=True)
    await report_backend(store)
    yield Served(f"http://127.0.0.1:{runner.addresses[0][1]}", workspace["api_key"], database_url.startswith("sqlite"))
    await runner.cleanup()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("migrated_original", "examples"),
    [
        ("sqlite", QUICK),
        pytest.param("sqlite", THOROUGH, marks=pytest.mark.soak),
        pytest.param("postgresql", THOROUGH, marks=pytest.mark.soak),
    ],
    indirect=["migrated_original"],
)
async def test_schemathesis_finds_no_violation(
    served: Served, examples: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command: list[str | Path] = [
        BIN / "st",
        "run",
        f"{served.url}/v1/openapi.json",
        "--phases",
        served.phases(examples),
    ]
    command += ["-H", f"Authorization: Bearer {served.key}"]
    options = ["--exclude-checks", EXCLUDED_CHECKS, "--max-examples", str(examples), "--seed", "1"]
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    options += ["--suppress-health-check", "too_slow"]  # a slow machine is no fault of the API
    fuzzer = await asyncio.create_subprocess_exec(
        *command, *options, "--warnings", "off", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await fuzzer.communicate()
    text = re.sub(r"(.)\1{40,}", r"\1\1…", output.decode())
    assert fuzzer.returncode == 0, text[-8000:]
    tested = re.search(r"Tested: (\d+)", text)
    assert tested is not None
    assert int(tested[1]) >= 40, text[-3000:]
    assert "bug in" not in caplog.text


@pytest.mark.timeout(300)
async def test_a_generated_client_completes_the_main_workflow(
    sqlite_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps((await sqlite_plane.get("/v1/openapi.json")).ok()))
    command: list[str | Path] = [BIN / "openapi-python-client", "generate", "--path", document]
    command += ["--output-path", tmp_path / "made"]
    settings = tmp_path / "settings.yml"
    settings.write_text("project_name_override: made\npackage_name_override: tollgate_client\npost_hooks: []\n")
    generator = await asyncio.create_subprocess_exec(
        *command, "--config", settings, "--fail-on-warning", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await generator.communicate()
    assert generator.returncode == 0, output.decode()
    monkeypatch.syspath_prepend(tmp_path / "made")
    await asyncio.to_thread(_main_workflow, str(sqlite_plane.client.make_url("")), sqlite_plane.key)


def _main_workflow(url: str, key: str) -> None:
    """Store a secret, create an endpoint, group and key, replace targets, list, revoke: all by generated code."""
    client_of = importlib.import_module("tollgate_client").AuthenticatedClient
    models = importlib.import_module("tollgate_client.models")

    def call(module: str, *path: str, **more: Any) -> Any:
        api_module = importlib.import_module(f"tollgate_client.api.{module}")
        with client_of(base_url=url.rstrip("/"), token=key) as client:
            answer = api_module.sync_detailed(*path, client=client, **more)
        assert answer.status_code == 200, answer.content
        return answer.parsed

    secret = call("secrets.set_secret", body=models.PutSecretRequestV1(name="v", value="sk"))
    target = models.VendorBTargetV1(
        provider=models.VendorBTargetV1Provider.VENDOR_B, secret_id=secret.id, target_model="big-1"
    )
    body = models.CreateGatewayEndpointRequestV1(slug="acme/chat", targets=[target])
    endpoint = call("endpoints.create_endpoint", body=body)
    assert endpoint.slug == "acme/chat"
    kind = models.RateLimitV1Type.REQUEST
    unit = models.RateLimitV1Unit.MINUTE
    limit = models.RateLimitV1(type_=kind, unit=unit, threshold=5)
    entry = models.GroupModelRequestV1(slug="acme/chat", rate_limits=[limit])
    metadata = models.GroupMetadataRequestV1(external_entity_id="customer-1")
    entry.usage_limits = None
    nothing = None
    request = models.CreateGatewayGroupRequestV1(metadata=metadata, models=[entry], hierarchy=nothing)
    group = call("groups.create_group", body=request)
    renamed = models.UpdateGatewayGroupRequestV1(metadata=models.GroupMetadataPatchV1(name="n"), models=None)
    assert call("groups.update_group", group.id, body=renamed).models[0].slug == "acme/chat"
    hook = call("webhooks.create_webhook", body=models.CreateWebhookRequestV1(url="https://93.184.215.14/hook"))
    quiet = models.UpdateWebhookRequestV1(enabled=False, url=None, rotate_secret=None)
    assert call("webhooks.update_webhook", hook.id, body=quiet).enabled is False
    fresh = models.UpdateWebhookRequestV1(rotate_secret=True, secret_overlap_seconds=None)
    assert call("webhooks.update_webhook", hook.id, body=fresh).secret.startswith("whsec_")
    assert group.effective_models[0].rate_limits[0].source_group == group.id
    minted = call("group_keys.create_group_key", group.id, body=models.CreateFederatedKeyRequestV1(name="n"))
    assert minted.api_key.startswith(minted.prefix)
    change = models.UpdateGatewayEndpointRequestV1(targets=[target])
    assert call("endpoints.update_endpoint", endpoint.id, body=change).id == endpoint.id
    assert [item.id for item in call("groups.list_groups").items] == [group.id]
    assert call("group_keys.revoke_group_key", group.id, minted.prefix).prefix == minted.prefix
