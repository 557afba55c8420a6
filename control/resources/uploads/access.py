"""The right to upload: workspaces that may train have it (docs/reference/training.md#uploads)."""

from control.edges.sql import workspace_rows
from control.edges.sql.store import Store, now_ms
from control.resources.training.errors import TrainingNotEnabledError
from control.resources.uploads.grants import Grant, new_grant


async def grant_upload(store: Store, workspace_id: str) -> Grant:
    """Keys for a new upload. TrainingNotEnabledError."""
    async with store.read() as conn:
        workspace = await workspace_rows.get_workspace(conn, workspace_id)
    if not workspace.training:
        raise TrainingNotEnabledError
    return new_grant(workspace_id, now_ms())
