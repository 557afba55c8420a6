"""Groups as large as there may be, and larger ones of before there was a bound."""

import json
from typing import Any

from sqlalchemy import insert

from control.edges.sql.tables import groups
from policy.groups import MAX_MODELS
from tests.control.plane import ControlPlane

LEVELS = 5
Json = dict[str, Any]


def full_models(count: int = MAX_MODELS, threshold: int = 1000) -> list[Json]:
    """Entries with every limit there may be."""
    rates = [{"type": type, "unit": "MINUTE", "threshold": threshold} for type in ("TOKEN", "REQUEST")]
    usages = [{"type": type, "unit": "DAY", "threshold": threshold} for type in ("TOKEN", "REQUEST")]
    return [{"slug": f"acme/m{n:05d}", "rate_limits": rates, "usage_limits": usages} for n in range(count)]


async def old_group(plane: ControlPlane, entity: str, models: list[Json], parent: str = "") -> str:
    """As it was written before there was a bound."""
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
    """Five levels of groups at their bound; their ids, from the root on."""
    ids: list[str] = []
    for level in range(LEVELS):
        made = await plane.try_group(f"l{level}", ids[-1] if ids else None, models=full_models(), mode="CASCADING")
        ids.append(made.ok()["id"])
    return ids
