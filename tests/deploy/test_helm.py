"""deploy/helm: the chart, rendered by Helm, makes the objects of deploy/kubernetes; its values are checked."""

import asyncio
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from deploy.prometheus.generate import texts
from tests.deploy.helm import CHART, helm, is_hook, template
from tests.deploy.kustomize import OVERLAYS, ROOT, Resource, pod_templates, rendered
from tests.deploy.test_kubernetes import VERSION

PRODUCT = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]["version"]
VARIANTS = ["base", *OVERLAYS]
MONITORING = ("--set", "monitoring.enabled=true")


def values_of(variant: str) -> list[str | Path]:
    return [] if variant == "base" else ["--values", CHART / f"values-{variant}.yaml"]


def kustomized(variant: str) -> tuple[str, list[Resource]]:
    """The namespace and the objects of an overlay, or of the base with the chart's image. Helm makes no namespace."""
    if variant != "base":
        resources = rendered(ROOT / "overlays" / variant)
        namespace = {one["metadata"]["name"] for one in resources if one["kind"] == "Namespace"}.pop()
        return namespace, [one for one in resources if one["kind"] != "Namespace"]
    resources = rendered(ROOT / "base")
    for resource in resources:
        resource["metadata"]["namespace"] = "tollgate"
    for _, pod in pod_templates(resources):
        pod["spec"]["containers"][0]["image"] = f"registry.example.com/tollgate:{PRODUCT}"
    return "tollgate", resources


def comparable(resource: Resource) -> Resource:
    """The object without what only Helm's have: the labels of a release, and the sum that replaces pods."""
    for name in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
        del resource["metadata"]["labels"][name]
    for _, pod in pod_templates([resource]):
        annotations = pod["metadata"].pop("annotations", {})
        assert annotations.keys() <= {"tollgate/settings-checksum"}
    return resource


def by_name(resources: list[Resource]) -> dict[tuple[str, str], Resource]:
    names = {(one["kind"], one["metadata"]["name"]): one for one in resources}
    assert len(names) == len(resources)
    return names


@pytest.mark.parametrize("variant", VARIANTS)
def test_chart_makes_the_objects_of_kustomize(variant: str) -> None:
    namespace, expected = kustomized(variant)
    resources = [one for one in template(*values_of(variant), namespace=namespace) if not is_hook(one)]
    assert by_name([comparable(one) for one in resources]) == by_name(expected)


def test_monitoring_makes_the_objects_of_the_component() -> None:
    plain = by_name(template())
    resources = by_name([one for one in template(*MONITORING) if (one["kind"], one["metadata"]["name"]) not in plain])
    component = by_name(rendered(ROOT / "components/monitoring"))
    for resource in component.values():
        resource["metadata"] |= {"namespace": "tollgate", "labels": {"app.kubernetes.io/part-of": "tollgate"}}
    assert {name: comparable(one) for name, one in resources.items()} == component
    assert sorted(kind for kind, _ in component) == ["PodMonitor", "PodMonitor", "PrometheusRule"]


def test_rules_of_the_operator_are_those_of_prometheus() -> None:
    for path, text in texts().items():
        assert path.read_text() == text, "python -m deploy.prometheus.generate"


def test_monitors_scrape_the_ports_and_jobs_that_prometheus_knows() -> None:
    resources = template(*MONITORING)
    scraped: dict[str, str] = {}
    for monitor in (one["spec"] for one in resources if one["kind"] == "PodMonitor"):
        (endpoint,) = monitor["podMetricsEndpoints"]
        labels = monitor["selector"]["matchLabels"]
        (pod,) = (pod for _, pod in pod_templates(resources) if labels.items() <= pod["metadata"]["labels"].items())
        (port,) = (one for one in pod["spec"]["containers"][0]["ports"] if one["name"] == endpoint["port"])
        scraped[endpoint["relabelings"][0]["replacement"]] = str(port["containerPort"])
    configuration = yaml.safe_load((ROOT.parent / "prometheus/prometheus.yaml").read_text())
    jobs = {
        one["job_name"]: one["static_configs"][0]["targets"][0].partition(":")[2]
        for one in configuration["scrape_configs"]
    }
    assert scraped == jobs


def test_chart_passes_helms_own_checks() -> None:
    for variant in VARIANTS:
        helm("lint", "--strict", CHART, *values_of(variant), *MONITORING)


@pytest.mark.parametrize("version", [VERSION, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("variant", VARIANTS)
def test_objects_follow_the_schemas(variant: str, version: str) -> None:
    for resource in template(*values_of(variant)):
        kubernetes_validate.validate(resource, version, strict=True)


def test_version_is_the_products() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (PRODUCT, PRODUCT)
    assert chart["kubeVersion"] == f">= {VERSION}.0-0"


def test_settings_that_change_replace_the_pods() -> None:
    sums = []
    for level in ("INFO", "DEBUG"):
        resources = template("--set", f"settings.TOLLGATE_LOG_LEVEL={level}")
        sums.append(
            [pod["metadata"]["annotations"]["tollgate/settings-checksum"] for _, pod in pod_templates(resources)]
        )
    assert not {*sums[0]} & {*sums[1]}


def test_values_reach_the_objects(tmp_path: Path) -> None:
    variable = {
        "name": "TOLLGATE_OIDC_CLIENT_SECRET",
        "valueFrom": {"secretKeyRef": {"name": "login", "key": "secret"}},
    }
    values = {
        "image": {"repository": "eu.registry/t", "tag": "9"},
        "imagePullSecrets": [{"name": "pull"}],
        "secretName": "others",
        "control": {"env": [variable], "pod": {"nodeSelector": {"disk": "ssd"}}},
        "proxy": {"imageTag": "8", "env": [variable], "pod": {"priorityClassName": "high"}, "storageClassName": "fast"},
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    resources = template("--values", file)
    pods = {one["metadata"]["name"]: pod["spec"] for one, pod in pod_templates(resources)}
    for pod in pods.values():
        assert pod["imagePullSecrets"] == [{"name": "pull"}]
        assert pod["containers"][0]["env"][-1] == variable
        names = {one["valueFrom"]["secretKeyRef"]["name"] for one in pod["containers"][0]["env"] if "valueFrom" in one}
        assert names == {"others", "login"}
    images = {name: pod["containers"][0]["image"] for name, pod in pods.items()}
    assert images == {"control": "eu.registry/t:9", "proxy": "eu.registry/t:8"}
    assert pods["control"]["nodeSelector"] == {"disk": "ssd"}
    assert pods["proxy"]["priorityClassName"] == "high"
    objects = by_name(resources)
    claim = objects["StatefulSet", "proxy"]["spec"]["volumeClaimTemplates"][0]["spec"]
    assert claim["storageClassName"] == "fast"
    assert objects["PrometheusRule", "tollgate"]["metadata"]["labels"]["release"] == "prometheus"
    credentials = objects["PodMonitor", "proxy"]["spec"]["podMetricsEndpoints"][0]["authorization"]["credentials"]
    assert credentials["name"] == "others"


def test_pods_speak_tls_with_a_certificate_from_a_secret() -> None:
    tls = ("--set", "podTlsSecretName=pods", "--set", "ingress.enabled=true")
    resources = template(*tls, *MONITORING)
    for resource in resources:
        if resource["apiVersion"] != "monitoring.coreos.com/v1":
            kubernetes_validate.validate(resource, VERSION, strict=True)
    for resource, pod in pod_templates(resources):
        name = resource["metadata"]["name"]
        other = {"control": "proxy", "proxy": "control"}[name].upper()
        (container,) = pod["spec"]["containers"]
        env = {one["name"]: one.get("value", "") for one in container["env"]}
        assert (env["TOLLGATE_TLS_CERT_FILE"], env["TOLLGATE_TLS_KEY_FILE"]) == ("/tls/tls.crt", "/tls/tls.key")
        assert env[f"TOLLGATE_{other}_URL"].startswith("https://")
        assert env[f"TOLLGATE_{other}_CERT_FILE"] == "/tls/tls.crt"
        assert {"name": "tls", "secret": {"secretName": "pods"}} in pod["spec"]["volumes"]
        assert {"name": "tls", "mountPath": "/tls", "readOnly": True} in container["volumeMounts"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            get = container[probe]["httpGet"]
            assert ("scheme" in get) is (get["port"] == "http"), "the admin port is plain"
    objects = by_name(resources)
    (endpoint,) = objects["PodMonitor", "control"]["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    annotations = objects["Ingress", "proxy"]["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"
    (hook,) = (one for one in resources if is_hook(one))
    assert hook["spec"]["containers"][0]["command"][-1] == "https://proxy:8080"


@pytest.mark.parametrize(
    "fault",
    [
        "proxy.worker=3",
        "proxy.workers=none",
        "proxy.workers=0",
        "proxy.sameHost=Never",
        "control.replicas=0",
        "settings.TOLLGATE_SHIPPED_MAX_BYTES=4294967296",
        "settings.log_level=INFO",
        "ingress.host=",
        "secretName=Not A Name",
        "monitoring.interval=often",
        "unknown=1",
    ],
)
def test_wrong_values_are_refused_by_name(fault: str) -> None:
    message = helm("template", "release", CHART, "--set", fault, is_refused=True)
    assert "values don't meet the specifications of the schema" in message
    *_, name = fault.partition("=")[0].split(".")
    assert name in message


def test_every_value_is_in_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() | {"global"} == schema["properties"].keys()
    for name, value in values.items():
        members = schema["properties"][name]
        members = schema["definitions"][members["$ref"].rpartition("/")[2]] if "$ref" in members else members
        if isinstance(value, dict) and "properties" in members:
            assert value.keys() == members["properties"].keys(), name


def test_hook_is_a_pod_that_runs_restricted() -> None:
    (pod,) = [one for one in template() if is_hook(one)]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    spec = pod["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    *command, program, url = spec["containers"][0]["command"]
    assert (command, url) == (["python", "-c"], "http://proxy:8080")
    assert program.strip() == (CHART / "files/reach.py").read_text().strip()


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [(401, {"error": "Unauthorized"}, ""), (200, {}, "asks for no key"), (503, {"error": "x"}, "answered 503")],
)
async def test_hook_knows_tollgate_by_its_refusal(status: int, body: Any, outcome: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_get("/v1/models", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        result = await _reached(url)
    assert (result.returncode == 0) is (outcome == "")
    assert outcome in result.stderr.decode()


async def test_hook_says_what_cannot_be_reached() -> None:
    result = await _reached("http://127.0.0.1:1")
    assert result.returncode == 1
    assert b"cannot be reached" in result.stderr


async def _reached(url: str) -> "subprocess.CompletedProcess[bytes]":
    def run() -> "subprocess.CompletedProcess[bytes]":
        program = CHART / "files/reach.py"
        return subprocess.run([sys.executable, program, url], capture_output=True, timeout=60, check=False)

    return await asyncio.to_thread(run)
