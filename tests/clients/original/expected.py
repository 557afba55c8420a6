"""Methods of the original's SDK that are refused on purpose, and those that do not work yet."""

from collections.abc import Iterable, Mapping
from typing import Any

NO_PROMOTION = "no promotion is in progress"
REFUSED = {
    "get_blobs_credentials_model": "uploads of training jobs alone",
    "post_gateway_endpoints, BASETEN": "targets.0.provider",
    "get_gateway_events, no window": "required unless cursor is given",
    "post_models": "source",
    "post_models_deployments": "source",
    "patch_models_environments, min_replica": "autoscaling_settings.min_replica",
    "patch_models_deployments_autoscaling_settings, min_replica": "min_replica",
    "get_models_deployments_config": "builds no models",
    "delete_models_deployments_replicas": "stopped by their owner",
    "patch_training_projects_jobs, running": "does not wait",
    "patch_training_capacity": "operator's setting",
    "post_training_projects_jobs_ssh_sign": "no SSH",
    "post_models_environments_pause_promotion": NO_PROMOTION,
    "post_models_environments_resume_promotion": NO_PROMOTION,
    "post_models_environments_cancel_promotion": NO_PROMOTION,
    "post_models_environments_force_cancel_promotion": NO_PROMOTION,
    "post_models_environments_force_roll_forward_promotion": NO_PROMOTION,
}
"""The methods (with their case) that answer a 4xx, and what its text must name."""
OPEN: Mapping[str, str] = {}
"""The methods that fail, and why."""
HOLDING = ("works", "refused", "not ours")


def label(record: Mapping[str, Any]) -> str:
    """The method, and its case where it has one."""
    return ", ".join(filter(None, (record["method"], record["case"])))


def surprises(
    records: Iterable[Mapping[str, Any]], open: Mapping[str, str] = OPEN, refused: Mapping[str, str] = REFUSED
) -> list[str]:
    """List what is not as expected, a line each."""
    lines = []
    for record in records:
        name = label(record)
        outcome = record["outcome"]
        if outcome not in HOLDING and name not in open:
            lines.append(f"{record['client']} {name}: {outcome} {record['status']} {record['text']}")
        elif outcome in HOLDING and name in open:
            lines.append(f"{record['client']} {name}: {outcome}; remove it from OPEN")
        elif outcome == "refused" and refused.get(name, "\0") not in record["text"]:
            lines.append(f"{record['client']} {name}: refused {record['text']!r}; REFUSED does not say so")
        elif outcome == "works" and name in refused:
            lines.append(f"{record['client']} {name}: works; remove it from REFUSED")
    return lines
