"""Writes the alert rules for the Prometheus Operator: `python -m deploy.prometheus.generate`.

`rules/` is their one source; a test holds the written files to it.
"""

from pathlib import Path
from typing import Any

import yaml

RULES = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
_DEPLOY = Path(__file__).parents[1]
KUSTOMIZE = _DEPLOY / "kubernetes/components/monitoring/alert-rules.yaml"
HELM = _DEPLOY / "helm/tollgate/files/alert-rules.yaml"
_HEAD = "# Written by `python -m deploy.prometheus.generate` from deploy/prometheus/rules.\n"


def texts() -> dict[Path, str]:
    """The files and their texts."""
    spec = {"groups": [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]}
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "tollgate"},
        "spec": spec,
    }
    return {KUSTOMIZE: _HEAD + _yaml(resource), HELM: _HEAD + _yaml(spec)}


def _yaml(value: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return text


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text)
