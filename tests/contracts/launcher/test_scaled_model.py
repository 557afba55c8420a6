"""deploy/kubernetes/scaled-model: the scaler at a scripted Kubernetes API, and whether the manifests fit together."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.contracts.launcher.scaler_process import FOLDER, SECRET, ScalerProcess
from tests.contracts.launcher.scripted_control import API_KEY, DEPLOYMENT, MODEL, ScriptedControl
from tests.contracts.launcher.scripted_kubernetes import ScriptedKubernetes
from tests.waiting import eventually


class Scaler(ScalerProcess):
    """The scaler at a scripted control and a scripted Kubernetes."""

    def __init__(self, control: ScriptedControl, kubernetes: ScriptedKubernetes) -> None:
        super().__init__(control.url, API_KEY, (MODEL, DEPLOYMENT), kubernetes)
        self.control = control
        self.kubernetes = kubernetes

    async def until(self, look: Any, what: str) -> None:
        await eventually(look, lambda: f"{what}\n{self.output}\n{self.control.history}", every_s=0.02)

    async def registered(self) -> None:
        await self.start()
        await self.until(lambda: "registered" in self.output, "it is registered")

    async def serving(self) -> list[str]:
        """Wake it, let its pods become ready, and return the list."""
        assert await self.control.wake() == 202
        await self.until(lambda: self.kubernetes.replicas == 1, "one pod is wanted")
        urls = self.kubernetes.become_ready()
        await self.until(lambda: self.control.replicas == urls, "the pod is listed")
        return urls


@pytest.fixture
async def scaler(tmp_path: Path) -> AsyncIterator[Scaler]:
    async with ScriptedControl() as control, ScriptedKubernetes(tmp_path) as kubernetes:
        scaler = Scaler(control, kubernetes)
        yield scaler
        await scaler.stop()


async def test_wake_starts_a_pod_that_is_listed_when_ready(scaler: Scaler) -> None:
    await scaler.registered()
    assert scaler.kubernetes.scales == []
    assert scaler.control.deployment["health"] == {"path": "/health"}
    assert await scaler.control.wake() == 202
    await scaler.until(lambda: scaler.control.deployment["status"] == "LOADING_MODEL", "the status follows")
    assert scaler.kubernetes.scales == [1]
    assert scaler.control.replicas == []
    urls = scaler.kubernetes.become_ready()
    await scaler.until(lambda: scaler.control.replicas == urls, "the pod is listed")


async def test_idle_deployment_is_delisted_drained_and_scaled_to_zero(scaler: Scaler) -> None:
    await scaler.registered()
    await scaler.serving()
    scaler.control.load["in_flight"] = 1
    await asyncio.sleep(4)
    assert scaler.control.replicas, "a call runs"
    scaler.control.load["in_flight"] = 0
    await scaler.until(lambda: not scaler.control.replicas, "it is delisted")
    assert scaler.kubernetes.replicas == 1, "proxies may not know yet"
    await scaler.until(lambda: scaler.kubernetes.replicas == 0, "it is scaled to zero")
    assert await scaler.control.wake() == 202
    await scaler.until(lambda: scaler.kubernetes.replicas == 1, "it is woken again")


async def test_load_scales_up_to_the_limit_and_deleted_pods_leave_the_list(scaler: Scaler) -> None:
    scaler.control.deployment["max_concurrency"] = 2
    await scaler.registered()
    scaler.control.load["parked"] = 50
    await scaler.until(lambda: scaler.kubernetes.replicas == 3, "three pods are wanted")
    scaler.kubernetes.become_ready()
    await scaler.until(lambda: len(scaler.control.replicas) == 3, "all are listed")
    scaler.control.load |= {"parked": 0, "in_flight": 2}
    await scaler.until(lambda: len(scaler.control.replicas) == 1, "one is left")


async def test_pods_that_cannot_start_fail_the_deployment_until_a_retry(scaler: Scaler) -> None:
    await scaler.registered()
    assert await scaler.control.wake() == 202
    await scaler.until(lambda: scaler.kubernetes.pods, "a pod is there")
    scaler.kubernetes.crash("CrashLoopBackOff")
    await scaler.until(lambda: scaler.control.deployment["status"] == "FAILED", "it is given up")
    reason = "pod model-1: CrashLoopBackOff: back-off 5m0s (last: OOMKilled)"
    assert scaler.control.deployment["error_message"] == reason
    await scaler.until(lambda: scaler.kubernetes.replicas == 0, "it is scaled to zero")
    scaler.kubernetes.pods.clear()
    scaler.control.deployment["status"] = "SCALED_TO_ZERO"
    await scaler.until(lambda: scaler.kubernetes.replicas == 1, "the retry is another attempt")


@pytest.mark.parametrize("who", ["control", "kubernetes"])
async def test_nothing_changes_while_an_api_is_away(scaler: Scaler, who: str) -> None:
    await scaler.registered()
    urls = await scaler.serving()
    if who == "control":
        await scaler.control.go_away()
    else:
        scaler.kubernetes.is_away = True
    await scaler.until(lambda: "cannot do my work" in scaler.output, "the outage is told")
    await asyncio.sleep(4)
    assert (scaler.kubernetes.replicas, scaler.control.replicas) == (1, urls)
    assert scaler.output.count("cannot do my work") == 1


async def test_restarted_scaler_keeps_what_runs_and_reads_the_token_anew(scaler: Scaler) -> None:
    await scaler.registered()
    urls = await scaler.serving()
    assert await scaler.stop() == 0
    (scaler.kubernetes.account / "token").write_text("a later token")
    await scaler.registered()
    await asyncio.sleep(1.5)
    assert (scaler.kubernetes.replicas, scaler.control.replicas) == (1, urls)


async def test_hook_answers_only_posts_to_its_secret_path_and_shows_no_secret(scaler: Scaler) -> None:
    await scaler.registered()
    base = scaler.environment["HOOK_URL"]
    requests = [
        ("GET", "/healthz"),
        ("GET", f"/wake/{SECRET}"),
        ("POST", f"/wake/{SECRET[:-1]}x"),
        ("POST", "/healthz"),
    ]
    async with aiohttp.ClientSession() as session:
        statuses = []
        for method, path in requests:
            async with session.request(method, base + path, data=b"{}") as answer:
                statuses.append(answer.status)
    assert statuses == [200, 405, 404, 404]
    await asyncio.sleep(1.5)
    assert scaler.kubernetes.scales == []
    assert SECRET not in scaler.output
    assert API_KEY not in scaler.output


@pytest.mark.parametrize(
    ("change", "expected"), [({"WAKE_SECRET": "short"}, "at least 32 characters"), ({"TARGET": ""}, "not set: TARGET")]
)
async def test_wrong_setting_ends_it_with_the_reason(scaler: Scaler, change: dict[str, str], expected: str) -> None:
    scaler.environment |= change
    await scaler.start()
    assert scaler.process is not None
    assert await scaler.process.wait() == 1
    await scaler.stop()
    assert expected in scaler.output


# --- the manifests ----------------------------------------------------------------------------------------------------


def manifests() -> dict[tuple[str, str], Any]:
    """All objects of the folder, by kind and name."""
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    objects = [one for name in kustomization["resources"] for one in yaml.safe_load_all((FOLDER / name).read_text())]
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def test_manifests_refer_to_each_other() -> None:
    objects = manifests()
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert all((FOLDER / file).exists() for one in kustomization["configMapGenerator"] for file in one["files"])
    scaler = objects["Deployment", "scaler"]["spec"]["template"]
    assert ("ServiceAccount", scaler["spec"]["serviceAccountName"]) in objects
    binding = objects["RoleBinding", "scaler"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in objects
    assert all((one["kind"], one["name"]) in objects for one in binding["subjects"])
    assert objects["Service", "scaler"]["spec"]["selector"].items() <= scaler["metadata"]["labels"].items()
    assert scaler["spec"]["volumes"][0]["configMap"]["name"] == kustomization["configMapGenerator"][0]["name"]
    for deployment in (objects["Deployment", "scaler"], objects["Deployment", "model"]):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert "replicas" not in objects["Deployment", "model"]["spec"], "an apply would undo the scale"


def test_manifests_set_what_the_scaler_reads() -> None:
    objects = manifests()
    (container,) = objects["Deployment", "scaler"]["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    secret = {"TOLLGATE_URL", "TOLLGATE_API_KEY", "MODEL_ID", "DEPLOYMENT_ID", "WAKE_SECRET"}
    text = (FOLDER / "README.md").read_text()
    assert all(f"--from-literal={name}=" in text for name in secret)
    assert container["envFrom"] == [{"secretRef": {"name": "scaler"}}]
    assert {"HOOK_URL", "TARGET"} <= set(environment)
    (model,) = objects["Deployment", environment["TARGET"]]["spec"]["template"]["spec"]["containers"]
    assert str(model["ports"][0]["containerPort"]) == environment["POD_PORT"]
    assert model["readinessProbe"]["httpGet"]["path"] == environment["HEALTH_PATH"]
    assert f":{container['ports'][0]['containerPort']}" in str(environment["HOOK_URL"])


def test_role_allows_what_the_scaler_asks_and_no_more() -> None:
    objects = manifests()
    (environment,) = objects["Deployment", "scaler"]["spec"]["template"]["spec"]["containers"]
    target = next(one["value"] for one in environment["env"] if one["name"] == "TARGET")
    assert objects["Role", "scaler"]["rules"] == [
        {
            "apiGroups": ["apps"],
            "resources": ["deployments/scale"],
            "resourceNames": [target],
            "verbs": ["get", "patch"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
