"""deploy/kubernetes: valid by Kubernetes' own schemas, consistent in itself, and in step with the product."""

from typing import Any

import kubernetes_validate
import pytest

from control.command import main as control
from control.settings import Settings as ControlSettings
from proxy.command import main as proxy
from proxy.settings import Settings as ProxySettings
from proxy.settings import settings_from
from runtime.setting_names import NAMES
from tests.deploy.kustomize import OVERLAYS, ROOT, Resource, pod_templates, rendered
from tests.deploy.test_compose import SECRETS

VERSION = "1.30"
"""The oldest Kubernetes that the manifests are checked for; the newest is what kubernetes-validate knows."""
OF_THE_SECRET = SECRETS | {
    "TOLLGATE_DATABASE_URL": "postgresql+asyncpg://tollgate:p@postgres/tollgate",
    "TOLLGATE_REDIS_URL": "redis://:r@redis:6379/0",
}
RENDERED = {name: rendered(ROOT / "overlays" / name) for name in OVERLAYS}


@pytest.fixture(params=OVERLAYS)
def resources(request: pytest.FixtureRequest) -> list[Resource]:
    return RENDERED[request.param]


def named(resources: list[Resource], kind: str, name: str) -> Any:
    (match,) = (one for one in resources if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return match


def container(resources: list[Resource], kind: str, name: str) -> Any:
    return named(resources, kind, name)["spec"]["template"]["spec"]["containers"][0]


def environment(resources: list[Resource], kind: str, name: str) -> dict[str, str]:
    """Return the container's environment: settings, secrets, values."""
    spec = container(resources, kind, name)
    values: dict[str, str] = {}
    for source in spec["envFrom"]:
        values |= named(resources, "ConfigMap", source["configMapRef"]["name"])["data"]
    for one in spec["env"]:
        values[one["name"]] = one["value"] if "value" in one else OF_THE_SECRET[one["valueFrom"]["secretKeyRef"]["key"]]
    return values


def test_two_overlays_exist() -> None:
    assert OVERLAYS == ["production", "trial"]


@pytest.mark.parametrize("version", [VERSION, kubernetes_validate.latest_version()])
def test_manifests_follow_the_schemas(resources: list[Resource], version: str) -> None:
    for resource in resources:
        kubernetes_validate.validate(resource, version, strict=True)


def test_planes_start_with_these_settings_and_flags(resources: list[Resource]) -> None:
    for kind, name, main in (("Deployment", "control", control), ("StatefulSet", "proxy", proxy)):
        plane, *flags = container(resources, kind, name)["args"]
        assert plane == name
        main.make_context(name, flags)
        variables = environment(resources, kind, name)
        assert variables.keys() <= NAMES
        settings: ControlSettings | ProxySettings
        settings = ControlSettings.from_environ(variables) if name == "control" else settings_from(variables)
        spec = named(resources, kind, name)["spec"]["template"]["spec"]
        grace_s = settings.ready_grace_s if isinstance(settings, ProxySettings) else 5
        probe = container(resources, kind, name)["readinessProbe"]
        assert grace_s >= probe["periodSeconds"] * probe.get("failureThreshold", 1)
        assert spec["terminationGracePeriodSeconds"] > settings.drain_timeout_s + 5


def test_proxies_find_control_by_its_service(resources: list[Resource]) -> None:
    url = environment(resources, "StatefulSet", "proxy")["TOLLGATE_CONTROL_URL"]
    (port,) = named(resources, "Service", "control")["spec"]["ports"]
    assert url == f"http://control:{port['port']}"


def test_control_finds_proxies_by_their_service(resources: list[Resource]) -> None:
    url = environment(resources, "Deployment", "control")["TOLLGATE_PROXY_URL"]
    (port,) = named(resources, "Service", "proxy")["spec"]["ports"]
    assert url == f"http://proxy:{port['port']}"


def test_journal_and_replica_are_on_the_claimed_volume(resources: list[Resource]) -> None:
    variables = environment(resources, "StatefulSet", "proxy")
    (claim,) = named(resources, "StatefulSet", "proxy")["spec"]["volumeClaimTemplates"]
    mounts = {one["mountPath"]: one["name"] for one in container(resources, "StatefulSet", "proxy")["volumeMounts"]}
    assert mounts["/data"] == claim["metadata"]["name"]
    # The volume's own directory belongs to root; Tollgate's must belong to its user.
    assert all(
        variables[name].startswith("/data/tollgate/") for name in ("TOLLGATE_JOURNAL_DIR", "TOLLGATE_REPLICA_PATH")
    )


def test_pods_run_restricted(resources: list[Resource]) -> None:
    for _, template in pod_templates(resources):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in spec["containers"]:
            context = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert one["securityContext"] == context
            assert one["resources"]["limits"].keys() == {"memory"}
            assert one["resources"]["requests"].keys() == {"cpu", "memory"}
            assert {"readinessProbe", "livenessProbe"} <= one.keys()


def test_selectors_select_and_ports_exist(resources: list[Resource]) -> None:
    pods = [template for _, template in pod_templates(resources)]
    for owner, template in pod_templates(resources):
        assert owner["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    for service in (one for one in resources if one["kind"] == "Service"):
        (pod,) = (one for one in pods if service["spec"]["selector"].items() <= one["metadata"]["labels"].items())
        ports = {port["name"] for one in pod["spec"]["containers"] for port in one["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for budget in (one for one in resources if one["kind"] == "PodDisruptionBudget"):
        labels = budget["spec"]["selector"]["matchLabels"]
        assert [one for one in pods if labels.items() <= one["metadata"]["labels"].items()]
    target = named(resources, "HorizontalPodAutoscaler", "proxy")["spec"]["scaleTargetRef"]
    assert "replicas" not in named(resources, target["kind"], target["name"])["spec"]


def test_each_pod_has_a_network_policy_that_names_who_may_connect(resources: list[Resource]) -> None:
    policies = [one["spec"] for one in resources if one["kind"] == "NetworkPolicy"]
    for _, template in pod_templates(resources):
        labels = template["metadata"]["labels"].items()
        matches = [one for one in policies if one["podSelector"]["matchLabels"].items() <= labels]
        assert len(matches) == 1
        assert matches[0]["policyTypes"] == ["Ingress"]
        open_to_all = [rule["ports"] for rule in matches[0]["ingress"] if "from" not in rule]
        assert open_to_all == ([[{"port": "http"}]] if ("app.kubernetes.io/name", "proxy") in labels else [])


def test_no_secret_is_in_the_manifests() -> None:
    for resources in RENDERED.values():
        assert not [one for one in resources if one["kind"] == "Secret"]
        for _, template in pod_templates(resources):
            variables = {
                one["name"]: one
                for container_spec in template["spec"]["containers"]
                for one in container_spec.get("env", ())
            }
            for name in variables.keys() & OF_THE_SECRET.keys():
                assert variables[name]["valueFrom"]["secretKeyRef"] == {"name": "tollgate", "key": name}
