"""Round trips of rows and pages through JSON, and how an older proxy reads rows of a newer control."""

from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given

from policy.credentials import KeyKind
from policy.deployments import Deployment, HealthCheck, Where
from policy.endpoints import Target, VendorCConfig
from policy.keys.roles import Role
from policy.keys.settings import KeySettings
from policy.limits.groups import Enforcement, Group, GroupNode
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit
from policy.snapshot import (
    EndpointRow,
    KeyRow,
    ModelRow,
    Row,
    SecretRow,
    SigningSecrets,
    SnapshotPage,
    WorkspaceRow,
    group_node_from_wire,
    group_to_wire,
    models_entry_from_wire,
    target_from_wire,
    target_to_wire,
)
from policy.spend.limits import SpendEnforcement, SpendLimit
from tests.policy.limits.trees import paths

TARGETS = [
    Target("PLATFORM", model_id="m"),
    Target("PLATFORM", model_id="m", environment_name="staging", target_model="t"),
    Target("VENDOR_A", secret_id="s", target_model="t"),
    Target("VENDOR_C", secret_id="s", target_model="t", vendor_c_config=VendorCConfig("p", "l")),
    Target("VENDOR_B_COMPATIBLE", secret_id="s", target_model="t", base_url="https://h"),
    Target("VENDOR_B", upstream_state="PASS", dialects=("RESPONSES", "MESSAGES"), price_options="REFUSE"),
    Target("VENDOR_D_OF_NEXT_YEAR", secret_id="s"),
]
MODEL = ModelRow("m", "w", {"d1": Deployment("d1", "ACTIVE", ("http://10.0.0.5:8000",))}, {"production": "d1"})


def through_json(wire: Any) -> Any:
    return orjson.loads(orjson.dumps(wire))


def test_a_target_of_an_older_control_has_no_options() -> None:
    assert target_to_wire(Target("VENDOR_A", secret_id="s")) == {"provider": "VENDOR_A", "secret_id": "s"}
    assert target_from_wire({"provider": "VENDOR_A", "secret_id": "s"}) == Target("VENDOR_A", secret_id="s")


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_equal_after_a_round_trip_through_json(target: Target) -> None:
    wire = through_json(target_to_wire(target))
    assert target_from_wire(wire) == target
    assert None not in wire.values()
    assert EndpointRow.from_wire("a/b", through_json(EndpointRow("a/b", "e", "w", target).to_wire())).target == target


@pytest.mark.parametrize("kind", list(KeyKind))
def test_a_key_row_is_equal_after_a_round_trip_through_json(kind: KeyKind) -> None:
    row = KeyRow("d" * 64, "tg_x", kind, "w", "g" if kind is KeyKind.FEDERATED else None)
    assert KeyRow.from_wire(row.digest, through_json(row.to_wire())) == row


SETTINGS = KeySettings(
    expires_at_ms=1_795_000_000_000,
    disabled=True,
    allowed_ips=("10.0.0.0/8", "2001:db8::/32"),
    slugs=("acme/chat",),
    rate_limits=(Limit(LimitType.REQUEST, Unit.MINUTE, 5),),
    spend_limits=(SpendLimit(Unit.DAY, Decimal("1.5"), "USD", SpendEnforcement.HARD),),
)


@pytest.mark.parametrize("settings", [None, KeySettings(slugs=()), SETTINGS])
def test_a_key_keeps_its_settings_through_json(settings: KeySettings | None) -> None:
    row = KeyRow("d", "tg_x", KeyKind.FEDERATED, "w", "g", settings, bucket="tg_first")
    assert KeyRow.from_wire("d", through_json(row.to_wire())) == row


def test_a_workspace_key_keeps_its_role_through_json() -> None:
    row = KeyRow("d", "tg_x", KeyKind.WORKSPACE_MANAGE_ALL, "w", None, role=Role.BILLING)
    assert KeyRow.from_wire("d", through_json(row.to_wire())) == row


def test_a_setting_of_a_newer_version_is_never_ignored() -> None:
    row = KeyRow("d", "tg_x", KeyKind.FEDERATED, "w", "g", SETTINGS)
    wire = through_json(row.to_wire())
    wire["settings"]["only_on_mondays"] = True
    with pytest.raises(ValueError, match="only_on_mondays"):
        KeyRow.from_wire("d", wire)


def test_other_rows_are_equal_after_a_round_trip_through_json() -> None:
    workspace = WorkspaceRow("w", "active", "basic", True)
    secret = SecretRow("s", "w", "c2VhbGVk")
    assert WorkspaceRow.from_wire("w", through_json(workspace.to_wire())) == workspace
    assert SecretRow.from_wire("s", through_json(secret.to_wire())) == secret


@pytest.mark.parametrize(
    "secrets", [None, SigningSecrets("c2VhbGVk"), SigningSecrets("bmV3", "b2xk", 1_795_000_000_000)]
)
def test_a_workspace_keeps_its_asynchronous_settings_through_json(secrets: SigningSecrets | None) -> None:
    row = WorkspaceRow("w", "active", "basic", True, 1_000_000, secrets)
    assert WorkspaceRow.from_wire("w", through_json(row.to_wire())) == row
    later = through_json(row.to_wire())
    if secrets is not None:
        later["signing_secrets"].append("of a later version")
    assert WorkspaceRow.from_wire("w", later) == row
    assert ModelRow.from_wire("m", through_json(MODEL.to_wire())) == MODEL


def node_fields(group: Group) -> tuple[str, str, str | None, str, Enforcement]:
    return group.id, group.workspace_id, group.parent_id, group.external_entity_id, group.enforcement


@given(paths())
def test_a_group_is_equal_after_a_round_trip_through_json(path: tuple[Group, ...]) -> None:
    for group in path:
        body = through_json(group_to_wire(group))
        node = group_node_from_wire(group.id, body)
        models = tuple(map(models_entry_from_wire, body["models"]))
        assert (node, models) == (GroupNode(*node_fields(group)), group.models)


@pytest.mark.parametrize("following", [None, "opaque"])
def test_a_page_is_equal_after_a_round_trip_through_json(following: str | None) -> None:
    rows = (Row("group", "g", 3, {"a": 1}), Row("key", "d", 4, None), Row("kind of next year", "x", 5, {}))
    page = SnapshotPage("epoch", 5, True, rows, following)
    assert SnapshotPage.from_wire(through_json(page.to_wire())) == page


def test_unknown_fields_of_a_newer_control_are_ignored() -> None:
    wire = MODEL.to_wire()
    wire["deployments"][0].append({"gpu": "new"})
    assert ModelRow.from_wire("m", wire | {"shiny": 1}) == MODEL
    page = SnapshotPage("e", 1, False, (Row("group", "g", 1, None),))
    newer = page.to_wire() | {"shiny": 1}
    newer["rows"][0].append("signature")
    assert SnapshotPage.from_wire(newer) == page


@pytest.mark.parametrize("change", [{"kind": "WORKSPACE_NEXT_YEAR"}])
def test_an_unknown_key_kind_raises_value_error(change: dict[str, str]) -> None:
    row = KeyRow("d", "tg_x", KeyKind.FEDERATED, "w", "g")
    with pytest.raises(ValueError, match="NEXT_YEAR"):
        KeyRow.from_wire("d", row.to_wire() | change)


def test_environment_lookup_ignores_case_and_prefers_the_exact_name() -> None:
    one = Deployment("d1", "ACTIVE")
    two = Deployment("d2", "ACTIVE")
    model = ModelRow("m", "ws", {"d1": one, "d2": two}, {"Staging": "d1", "staging": "d2", "Gone": "d9"})
    assert [model.deployment_at(Where(name)) for name in ("Staging", "staging", "STAGING")] == [one, two, one]
    assert model.deployment_at(Where("gone")) is model.deployment_at(Where("production")) is None
    kelvin = ModelRow("m", "ws", {"d1": one}, {"k": "d1"})
    assert (kelvin.deployment_at(Where("K")), kelvin.deployment_at(Where("\N{KELVIN SIGN}"))) == (one, None)


def test_deployment_is_found_by_its_id_or_by_environment_and_production_is_the_default() -> None:
    one = Deployment("d1", "ACTIVE")
    two = Deployment("d2", "ACTIVE")
    model = ModelRow("m", "w", {"d1": one, "d2": two}, {"production": "d1", "staging": "d2"})
    assert model.deployment_at(Where(deployment_id="d2")) is two
    assert model.deployment_at(Where(deployment_id="d3")) is None
    assert (model.deployment_at(Where()), model.deployment_at(Where("staging"))) == (one, two)


def test_deployment_settings_survive_the_wire_and_a_row_of_an_older_control_has_the_defaults() -> None:
    health = HealthCheck("/ready", interval_s=1.5, unhealthy_after=5)
    deployment = Deployment("d1", "ACTIVE", ("http://10.0.0.5",), health=health, max_concurrency=4, max_queued=0)
    model = ModelRow("m", "w", {"d1": deployment})
    assert ModelRow.from_wire("m", model.to_wire()) == model
    older = {"workspace_id": "w", "deployments": [["d1", "ACTIVE", []]], "environments": {}}
    assert ModelRow.from_wire("m", older).deployments["d1"] == Deployment("d1", "ACTIVE")


def test_finding_an_environment_does_not_go_through_all_of_them() -> None:
    """Every call of a model does it, and one tenant's model may have thousands."""

    class Environments(dict[str, str]):
        gone_through = 0

        def items(self) -> Any:
            self.gone_through += 1
            return super().items()

    environments = Environments({"Staging": "d1"})
    one = Deployment("d1", "ACTIVE")
    model = ModelRow("m", "w", {"d1": one}, environments)
    at_first = environments.gone_through
    assert [model.deployment_at(Where(name)) for name in ("staging", "unknown")] == [one, None]
    assert environments.gone_through == at_first


def test_an_empty_environment_leads_nowhere_and_keeps_its_name_on_the_wire() -> None:
    one = Deployment("d1", "ACTIVE")
    model = ModelRow("m", "w", {"d1": one}, {"Staging": None, "staging": "d1", "production": None})
    assert ModelRow.from_wire("m", model.to_wire()) == model
    assert model.deployment_at(Where("STAGING")) is one
    assert model.deployment_at(Where()) is model.deployment_at(Where("production")) is None
