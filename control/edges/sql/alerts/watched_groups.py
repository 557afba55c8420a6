"""The groups that are watched: those with percents of their own, and in INDEPENDENT trees all below them.

Groups without percents cost nothing here: a partial index has the others.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select

from control.edges.sql.group_rows import paths_of
from control.edges.sql.one_of import one_of
from control.edges.sql.store import Connection
from control.edges.sql.tables import HAS_PERCENTS, groups
from policy.limits.groups import Enforcement


@dataclass(frozen=True, slots=True)
class RoundPlace:
    """A place in a round over all watched groups, in the order of their paths: behind `after_path`.

    `top_path`: of the group with percents whose subtree the round is in; "" between two of them.
    """

    after_path: str = ""
    top_path: str = ""


async def with_percents(conn: Connection, group_ids: Collection[str]) -> list[str]:
    """Select the groups that have percents, or an ancestor that has."""
    if not group_ids:
        return []
    paths = await paths_of(conn, group_ids)
    ids = {id for path in paths.values() for id in path.split("/")}
    query = select(groups.c.id).where(one_of(groups.c.id, ids), HAS_PERCENTS)
    sources = set((await conn.execute(query)).scalars())
    return [id for id, path in paths.items() if not sources.isdisjoint(path.split("/"))]


async def next_watched(conn: Connection, place: RoundPlace, limit: int) -> tuple[list[str], RoundPlace | None]:
    """The ids of the next groups of the round, and where it goes on; None if it is at its end."""
    ids: list[str] = []
    while len(ids) < limit:
        if not place.top_path:
            tops = select(groups.c.path, groups.c.id, groups.c.enforcement).where(HAS_PERCENTS)
            tops = tops.where(groups.c.path > place.after_path).order_by(groups.c.path).limit(1)
            top = (await conn.execute(tops)).one_or_none()
            if top is None:
                return ids, None
            if top.enforcement == Enforcement.CASCADING:  # those below it are counted by their own limits
                ids.append(top.id)
                place = RoundPlace(top.path)
                continue
            place = RoundPlace(top.path[:-1], top.path)
        subtree_end = f"{place.top_path[:-1]}0"
        below = select(groups.c.path, groups.c.id).where(groups.c.path > place.after_path, groups.c.path < subtree_end)
        rows = (await conn.execute(below.order_by(groups.c.path).limit(limit - len(ids)))).all()
        is_through = len(ids) + len(rows) < limit
        ids += [row.id for row in rows]
        place = RoundPlace(subtree_end) if is_through else RoundPlace(rows[-1].path, place.top_path)
    return ids, place
