"""Renders our overlays as `kubectl kustomize` does. A key that they do not use yet fails."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
OVERLAYS = sorted(path.parent.name for path in ROOT.glob("overlays/*/kustomization.yaml"))
KEYS = {
    "apiVersion",
    "kind",
    "resources",
    "namespace",
    "labels",
    "images",
    "configMapGenerator",
    "patches",
}
Resource = dict[str, Any]
_CLUSTER_WIDE = ("Namespace",)


def rendered(folder: Path) -> list[Resource]:
    """The resources of a kustomization. Names of config maps have no hash."""
    kustomization: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert kustomization.keys() <= KEYS, f"{folder}: teach tests/deploy/kustomize.py {kustomization.keys() - KEYS}"
    resources = [resource for name in kustomization["resources"] for resource in _read(folder / name)]
    for generator in kustomization.get("configMapGenerator", ()):
        _generate(resources, generator)
    for patch in kustomization.get("patches", ()):
        (target,) = (one for one in resources if _is(one, **patch["target"]))
        for operation in yaml.safe_load(patch["patch"]):
            _apply(target, **operation)
    for resource in resources:
        _transform(resource, kustomization)
    return resources


def pod_templates(resources: list[Resource]) -> Iterator[tuple[Resource, Any]]:
    """Each resource that makes pods, and its pods' template."""
    yield from ((one, one["spec"]["template"]) for one in resources if one["kind"] in ("Deployment", "StatefulSet"))


def _read(path: Path) -> list[Resource]:
    return rendered(path) if path.is_dir() else [one for one in yaml.safe_load_all(path.read_text()) if one]


def _generate(resources: list[Resource], generator: dict[str, Any]) -> None:
    data = dict(line.split("=", 1) for line in generator["literals"])
    if generator.get("behavior") == "merge":
        (config_map,) = (one for one in resources if _is(one, "ConfigMap", generator["name"]))
        config_map["data"] |= data
    else:
        resources.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}
        )


def _is(resource: Resource, kind: str, name: str) -> bool:
    return (resource["kind"], resource["metadata"]["name"]) == (kind, name)


def _apply(target: Any, op: str, path: str, value: Any) -> None:
    """One operation of RFC 6902; `replace` needs a member that exists."""
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("/")[1:])
    for step in steps:
        target = target[step]
    assert op == "add" or last in (range(len(target)) if isinstance(target, list) else target), f"nothing at {path}"
    target[last] = copy.deepcopy(value)


def _transform(resource: Resource, kustomization: dict[str, Any]) -> None:
    metadata = resource["metadata"]
    if "namespace" in kustomization and resource["kind"] not in _CLUSTER_WIDE:
        metadata["namespace"] = kustomization["namespace"]
    for labels in kustomization.get("labels", ()):
        metadata["labels"] = metadata.get("labels", {}) | labels["pairs"]
    for image in kustomization.get("images", ()):
        for _, template in pod_templates([resource]):
            for container in template["spec"]["containers"]:
                if container["image"] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
