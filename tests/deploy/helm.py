"""Runs Helm, which a package of the tests holds, on the chart of deploy/helm. Tests skip where it has no build."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kustomize import Resource

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/tollgate"
HELM = Path(sys.executable).with_name("helm")


def helm(*words: str | Path, is_refused: bool = False) -> str:
    """Return what Helm prints; what it says of a fault where it is to refuse."""
    if not HELM.exists():
        pytest.skip("no helm: the package helm-binary has builds for Linux on x86_64 alone")
    environment = {"HOME": "/nonexistent", "PATH": ""}  # no configuration, plugins or cluster of whoever runs the tests
    result = subprocess.run([HELM, *words], capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert (result.returncode != 0) is is_refused, result.stdout + result.stderr
    return result.stderr if is_refused else result.stdout


def template(*flags: str | Path, namespace: str = "tollgate") -> list[Resource]:
    """The objects of a release, hooks as well."""
    text = helm("template", "release", CHART, "--namespace", namespace, *flags)
    return [one for one in yaml.safe_load_all(text) if one]


def is_hook(resource: Resource) -> bool:
    annotations: dict[str, Any] = resource["metadata"].get("annotations", {})
    return "helm.sh/hook" in annotations
