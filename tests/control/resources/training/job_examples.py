"""Training jobs for tests: a waiting one, changed as a test needs it."""

from dataclasses import replace
from typing import Any

from control.records.training import JobRecord
from policy.training.resources import NodeResources
from policy.training.statuses import CREATED

SMALL = NodeResources(millicpu=1000, memory_mib=512)
_CREATED = JobRecord(
    id="tj_1",
    workspace_id="ws",
    project_id="tp_1",
    name=None,
    status=CREATED,
    error_message=None,
    priority=0,
    availability_model="dedicated",
    node_count=1,
    resources=SMALL,
    gpu_memory_mib=None,
    attempt=0,
    stop_requested=False,
    is_deleted=False,
    recreated_from=None,
    checkpoint_sync_status=None,
    environment_digest=None,
    nodes=(),
    output_offsets={},
    created_at_ms=1000,
    updated_at_ms=1000,
    ended_at_ms=None,
)


def job(**changes: Any) -> JobRecord:
    """A job that was created, with these fields changed."""
    return replace(_CREATED, **changes)
