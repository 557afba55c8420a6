"""`snapshot show` describes what the proxy would do with a slug or key, without secrets."""

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from policy.credentials import KeyKind
from policy.deployments import Deployment, HealthCheck
from policy.endpoints import Target
from policy.limits.groups import Enforcement, Group
from policy.limits.kinds import LimitType, Unit
from policy.limits.limit import Limit, SlugLimits
from policy.sealing import seal
from policy.snapshot import EndpointRow, KeyRow, ModelRow, Row, SecretRow, WorkspaceRow, group_to_wire
from proxy.command import main
from proxy.edges.policy.recorded_time import recorded_time_path
from proxy.edges.policy.supervisor.policy_replica import PolicyReplica
from proxy.edges.policy.supervisor.time_recorder import Clocks, TimeRecorder
from proxy.records.supervisor.policy_replica import ReplicaVersion

KEYS = (b"k" * 32,)
MINUTE_60 = Limit(LimitType.REQUEST, Unit.MINUTE, 60)


def group(id: str, parent: str | None, mode: Enforcement, *models: SlugLimits) -> Row:
    return Row("group", id, 1, group_to_wire(Group(id, "ws", parent, f"ext-{id}", mode, models)))


def key(prefix: str, group_id: str | None, kind: KeyKind = KeyKind.FEDERATED) -> Row:
    return Row("key", f"digest-{prefix}", 1, KeyRow(f"digest-{prefix}", prefix, kind, "ws", group_id).to_wire())


ROWS = (
    Row("workspace", "ws", 1, WorkspaceRow("ws", "active", "basic", True).to_wire()),
    Row("workspace", "late", 1, WorkspaceRow("late", "suspended", "basic", True).to_wire()),
    Row("secret", "s1", 1, SecretRow("s1", "ws", seal(KEYS, "s1", "sk-plain", b"n" * 12)).to_wire()),
    Row("endpoint", "o/v", 1, EndpointRow("o/v", "e1", "ws", Target("VENDOR_B", None, None, "s1", "gpt")).to_wire()),
    Row("endpoint", "o/p", 1, EndpointRow("o/p", "e2", "ws", Target("PLATFORM", "m1")).to_wire()),
    Row("endpoint", "o/api", 1, EndpointRow("o/api", "e4", "ws", Target("PLATFORM_MODEL_API")).to_wire()),
    Row("endpoint", "o/late", 1, EndpointRow("o/late", "e3", "late", Target("PLATFORM", "gone")).to_wire()),
    Row(
        "model",
        "m1",
        1,
        ModelRow("m1", "ws", {"d1": Deployment("d1", "ACTIVE", ("http://10.0.0.5",))}, {"production": "d1"}).to_wire(),
    ),
    group("root", None, Enforcement.CASCADING, SlugLimits("o/v", (MINUTE_60,))),
    group(
        "leaf",
        "root",
        Enforcement.CASCADING,
        SlugLimits("o/v"),
        SlugLimits("o/p"),
        SlugLimits("o/later"),
        SlugLimits("o/api"),
    ),
    group("solo", None, Enforcement.INDEPENDENT, SlugLimits("o/v", (MINUTE_60,))),
    key("tg_leaf", "leaf"),
    key("tg_lost", "gone"),
    key("tg_admin", None, KeyKind.WORKSPACE_MANAGE_ALL),
)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[PolicyReplica]:
    replica = PolicyReplica(tmp_path / "replica.db")
    update = replica.begin_update(reset=True)
    update.add(ROWS)
    update.commit(ReplicaVersion("e1", 7))
    yield replica
    replica.close()


def show(data: Path, *arguments: str) -> str:
    environ = {"TOLLGATE_SECRET_KEY": base64.b64encode(KEYS[0]).decode()}
    result = CliRunner().invoke(main, ["--data", str(data), "snapshot", "show", *arguments], env=environ)
    assert result.exit_code == 0, result.output
    assert "sk-plain" not in result.output
    return result.output


@pytest.mark.usefixtures("replica")
def test_overview_counts_rows(tmp_path: Path) -> None:
    output = show(tmp_path)
    assert "revision 7 of epoch e1" in output
    assert "4 endpoint, 3 group, 3 key, 1 model, 1 secret, 2 workspace" in output
    assert "not being refreshed now" in output


def test_freshness_is_shown_while_a_proxy_runs(tmp_path: Path, replica: PolicyReplica) -> None:
    replica.confirm(time.monotonic() - 12)
    assert "confirmed by control 12 s ago" in show(tmp_path)


@pytest.mark.usefixtures("replica")
def test_slug_shows_its_target(tmp_path: Path) -> None:
    assert "target VENDOR_B: secret_id s1, target_model gpt" in show(tmp_path, "--slug", "o/v")
    assert "production is deployment d1, ACTIVE: http://10.0.0.5" in show(tmp_path, "--slug", "o/p")
    assert "no such endpoint; every call is answered 404" in show(tmp_path, "--slug", "o/none")
    late = show(tmp_path, "--slug", "o/late")
    assert "suspended: calls are answered 402" in late
    assert "no deployment serves production" in late


@pytest.mark.parametrize(
    ("deployment", "lines"),
    [
        (Deployment("d2", "INACTIVE", ("http://a",)), ["d2, INACTIVE: http://a", "calls are answered 503"]),
        (Deployment("d2", "SCALED_TO_ZERO"), ["d2, SCALED_TO_ZERO: no replica", "calls are parked\n"]),
        (Deployment("d2", "ACTIVE"), ["calls are answered 503; those that were parked go on waiting"]),
        (
            Deployment("d2", "LOADING_MODEL", ("http://a",), HealthCheck("/ready", interval_s=0.5)),
            ["calls are parked until a probe finds", "each proxy machine probes /ready every 0.5 s"],
        ),
        (
            Deployment("d2", "ACTIVE", ("http://a",), max_concurrency=4, max_queued=7),
            ["calls go to its replicas", "at most 4 calls in flight and 7 queued per replica and machine"],
        ),
    ],
    ids=lambda one: one.status if isinstance(one, Deployment) else "",
)
def test_platform_slug_shows_what_becomes_of_its_calls(
    tmp_path: Path, replica: PolicyReplica, deployment: Deployment, lines: list[str]
) -> None:
    publish_model(replica, ModelRow("m1", "ws", {"d2": deployment}, {"production": "d2"}))
    output = show(tmp_path, "--slug", "o/p")
    assert all(line in output for line in lines), output


def test_another_workspaces_model_serves_nothing(tmp_path: Path, replica: PolicyReplica) -> None:
    publish_model(
        replica, ModelRow("m1", "late", {"d2": Deployment("d2", "ACTIVE", ("http://a",))}, {"production": "d2"})
    )
    assert "no deployment serves production: calls are answered 404" in show(tmp_path, "--slug", "o/p")


def publish_model(replica: PolicyReplica, model: ModelRow) -> None:
    update = replica.begin_update(reset=False)
    update.add([Row("model", model.id, 8, model.to_wire())])
    update.commit(ReplicaVersion("e1", 8))


@pytest.mark.usefixtures("replica")
def test_key_shows_its_groups_and_every_limit_with_its_source(tmp_path: Path) -> None:
    output = show(tmp_path, "--key-prefix", "tg_leaf")
    assert "group leaf (external_entity_id ext-leaf), limits CASCADING" in output
    assert "below root (ext-root)" in output
    assert "o/v: goes to VENDOR_B\n    at most 60 REQUEST per MINUTE, set by root" in output
    assert "o/p: goes to PLATFORM; no limit binds" in output
    assert "o/later: allowed, but there is no such endpoint; answered 404" in output
    only = show(tmp_path, "--key-prefix", "tg_leaf", "--slug", "o/none")
    assert "o/none: not among the group's models; answered 404" in only
    assert "o/p" not in only


@pytest.mark.usefixtures("replica")
def test_model_api_slug_shows_the_limits_of_the_tier(tmp_path: Path) -> None:
    by_slug = show(tmp_path, "--slug", "o/api")
    by_key = show(tmp_path, "--key-prefix", "tg_leaf", "--slug", "o/api")
    for output in (by_slug, by_key):
        assert "at most 15 REQUEST per MINUTE, set by tier basic of workspace ws" in output
        assert "at most 100000 TOKEN per MINUTE, set by tier basic of workspace ws" in output
    assert "o/api: goes to PLATFORM_MODEL_API\n" in by_key
    assert "tier" not in show(tmp_path, "--slug", "o/v")


def test_tier_limits_come_from_the_setting_and_the_workspace(
    tmp_path: Path, replica: PolicyReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLLGATE_MODEL_API_TIERS", "basic=7/700")
    assert "at most 7 REQUEST per MINUTE, set by tier basic" in show(tmp_path, "--slug", "o/api")
    for tier, expected in (("custom=600/9000", "at most 600 REQUEST per MINUTE"), ("gold", "it counts as basic")):
        update = replica.begin_update(reset=False)
        update.add([Row("workspace", "ws", 2, WorkspaceRow("ws", "active", tier, True).to_wire())])
        update.commit(ReplicaVersion("e1", 8))
        assert expected in show(tmp_path, "--slug", "o/api")


@pytest.mark.usefixtures("replica")
def test_keys_that_may_not_call_show_the_reason(tmp_path: Path) -> None:
    assert "group gone is gone: calls are answered 403" in show(tmp_path, "--key-prefix", "tg_lost")
    assert "a workspace key: calls to slugs are answered 403" in show(tmp_path, "--key-prefix", "tg_admin")
    assert "tg_none: not known here" in show(tmp_path, "--key-prefix", "tg_none")


@pytest.mark.usefixtures("replica")
def test_full_key_given_by_mistake_is_not_printed(tmp_path: Path) -> None:
    assert "topsecret" not in show(tmp_path, "--key-prefix", "tg_none.topsecret")


def test_missing_replica_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--data", str(tmp_path), "snapshot", "show"])
    assert result.exit_code == 1
    assert "There is no replica of policy" in result.output


def test_data_flag_overrides_the_environment(tmp_path: Path, replica: PolicyReplica) -> None:
    assert replica.version.loaded
    environ = {"TOLLGATE_REPLICA_PATH": "/nowhere/replica.db"}
    result = CliRunner().invoke(main, ["--data", str(tmp_path), "snapshot", "show"], env=environ)
    assert result.exit_code == 0


def test_key_shows_the_spend_limits_and_the_balance_up_its_tree(tmp_path: Path, replica: PolicyReplica) -> None:
    root = group("root", None, Enforcement.CASCADING)
    assert root.body is not None
    root.body["spend_limits"] = [{"unit": "DAY", "amount": "5.00", "currency": "EUR", "enforcement": "SOFT"}]
    root.body["balance"] = {"currency": "EUR", "deposited": "20.00"}
    update = replica.begin_update(reset=False)
    update.add([root])
    update.commit(ReplicaVersion("e1", 8))
    lines = show(tmp_path, "--key-prefix", "tg_leaf")
    assert "over all slugs at most 5.00 EUR per DAY (SOFT), set by root\n" in lines
    assert "draws from the balance of root, into which 20.00 EUR was paid in all\n" in lines


def publish_key(replica: PolicyReplica, settings: dict[str, object]) -> None:
    row = key("tg_leaf", "leaf")
    assert row.body is not None
    row.body["settings"] = settings
    update = replica.begin_update(reset=False)
    update.add([row])
    update.commit(ReplicaVersion("e1", replica.version.revision + 1))


def test_key_shows_the_terms_on_which_it_may_call(tmp_path: Path, replica: PolicyReplica) -> None:
    later_ms = int(time.time() * 1000) + 10**9
    settings = {"expires_at_ms": later_ms, "allowed_ips": ["192.0.2.0/24", "2001:db8::/32"], "slugs": ["o/v"]}
    publish_key(replica, settings)
    lines = show(tmp_path, "--key-prefix", "tg_leaf")
    assert "  it expires at 20" in lines
    assert "these addresses alone, others are answered 403: 192.0.2.0/24, 2001:db8::/32\n" in lines
    assert "o/p: not among the key's slugs; answered 404\n" in lines
    assert "o/v: goes to VENDOR_B" in lines


def test_ended_key_is_shown_by_the_time_that_the_machine_has_recorded(tmp_path: Path, replica: PolicyReplica) -> None:
    later_ms = int(time.time() * 1000) + 10**9
    publish_key(replica, {"expires_at_ms": later_ms, "disabled": True})
    recorder = TimeRecorder(recorded_time_path(tmp_path / "journal"), Clocks(lambda: later_ms * 10**6))
    recorder.record()
    recorder.close()
    lines = show(tmp_path, "--key-prefix", "tg_leaf")
    assert "it is disabled: calls are answered 403\n" in lines
    assert "it expired at 20" in lines


def test_key_that_cannot_be_read_is_an_error_with_its_remedy(tmp_path: Path, replica: PolicyReplica) -> None:
    publish_key(replica, {"allowed_countries": ["DE"]})
    result = CliRunner().invoke(main, ["--data", str(tmp_path), "snapshot", "show", "--key-prefix", "tg_leaf"])
    assert result.exit_code == 1
    assert "Update this proxy" in result.output
