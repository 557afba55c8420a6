"""Groups at the bound on models, and larger groups written before the bound existed."""

import json
from typing import Any

from sqlalchemy import insert

from control.edges.sql.tables import groups
from policy.limits.groups import MAX_MODELS
from tests.control.plane import ControlPlane

LEVELS = 5
Json = dict[str, Any]


def full_models(count: int = MAX_MODELS, threshold: int = 1000) -> list[Json]:
    """Entries of `models`, each with all four limits."""
    rates = [{"type": type, "unit": "MINUTE", "threshold": threshold} for type in ("TOKEN", "REQUEST")]
    usages = [{"type": type, "unit": "DAY", "threshold": threshold} for type in ("TOKEN", "REQUEST")]
    return [{"slug": f"acme/m{n:05d}", "rate_limits": rates, "usage_limits": usages} for n in range(count)]


async def old_group(plane: ControlPlane, entity: str, models: list[Json], parent: str = "") -> str:
    """Insert a group as it was written before the bound existed. Returns its id."""
    id = f"grp_{entity}"
    values: Json = {
        "id": id,
        "workspace_id": plane.workspace_id,
        "parent_id": parent or None,
        "root_id": parent or id,
        "path": f"{parent}/{id}/" if parent else f"{id}/",
        "enforcement": "CASCADING",
        "external_entity_id": entity,
        "models": json.dumps(models, separators=(",", ":")),
        "created_at_ms": 1,
        "updated_at_ms": 1,
    }
    async with plane.store.write() as tx:
        await tx.conn.execute(insert(groups).values(**values))
    return id


async def full_tree(plane: ControlPlane) -> list[str]:
    """Create five levels of groups at the bound. Returns their ids, root first."""
    ids: list[str] = []
    for level in range(LEVELS):
        answer = await plane.try_group(f"l{level}", ids[-1] if ids else None, models=full_models(), mode="CASCADING")
        ids.append(answer.ok()["id"])
    return ids
