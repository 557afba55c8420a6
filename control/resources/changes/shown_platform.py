"""Platform models and training as the API shows them, for the audit trail: what people set, not what proxies report."""

from typing import Any
from urllib.parse import urlsplit

import orjson

from control.records.audit import Shown
from control.records.models import DeploymentRecord, EnvironmentRecord, ModelRecord
from control.records.times import time_text
from control.records.training import JobRecord, ProjectRecord
from control.resources.changes.long_lists import shown_lists
from policy.snapshot import health_to_wire


def shown_model(record: ModelRecord) -> dict[str, Any]:
    return {"id": record.id, "name": record.name, "created_at": time_text(record.created_at_ms)}


def deployment_sides(
    before: DeploymentRecord | None, after: DeploymentRecord | None
) -> tuple[Shown | None, Shown | None]:
    """A deployment before and after a change. Of `wake_url` the host alone: its path may hold a secret."""
    entries = [[] if record is None else [orjson.dumps(url) for url in record.replicas] for record in (before, after)]
    old, new = shown_lists("replicas", *entries)
    return _joined(before, old), _joined(after, new)


def _joined(record: DeploymentRecord | None, lists: Shown) -> Shown | None:
    return None if record is None else {**_deployment(record), **lists}


def _deployment(record: DeploymentRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "model_id": record.model_id,
        "status": record.status,
        "wake_url": None if record.wake_url is None else _without_path(record.wake_url),
        "health": None if record.health is None else health_to_wire(record.health),
        "max_concurrency": record.max_concurrency,
        "max_queued": record.max_queued,
        "error_message": record.error_message,
        "created_at": time_text(record.created_at_ms),
        "updated_at": time_text(record.updated_at_ms),
    }


def _without_path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/…"


def shown_environment(record: EnvironmentRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "model_id": record.model_id,
        "deployment_id": record.deployment_id,
        "created_at": time_text(record.created_at_ms),
        "updated_at": time_text(record.updated_at_ms),
    }


def shown_project(record: ProjectRecord) -> dict[str, Any]:
    times = {"created_at": time_text(record.created_at_ms), "updated_at": time_text(record.updated_at_ms)}
    return {"id": record.id, "name": record.name, **times}


def shown_job(record: JobRecord) -> dict[str, Any]:
    """The job without its configuration, whose environment may hold secrets, and without its trainer's reports."""
    return {
        "id": record.id,
        "created_at": time_text(record.created_at_ms),
        "updated_at": time_text(record.updated_at_ms),
        "current_status": record.status,
        "training_project_id": record.project_id,
        "node_count": record.node_count,
        "name": record.name,
        "priority": record.priority,
        "availability_model": record.availability_model,
        "stop_requested": record.stop_requested,
        "recreated_from": record.recreated_from,
    }
