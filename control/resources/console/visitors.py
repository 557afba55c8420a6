"""The names of a logged-in visitor: the workspace, and the group whose key it is."""

from dataclasses import dataclass

from control.edges.sql.console.visitor_rows import find_named_group
from control.edges.sql.store import Store
from control.edges.sql.workspace_rows import get_workspace, owned_prefixes
from control.records.console import NamedGroup
from control.resources.console.console_sessions import ConsoleSession


@dataclass(frozen=True, slots=True)
class Visitor:
    """`workspace`: its name; `prefixes`: those of its slugs; `group`: None for a workspace key."""

    workspace: str
    prefixes: list[str]
    group: NamedGroup | None


async def read_visitor(store: Store, session: ConsoleSession) -> Visitor:
    workspace_id = session.caller.workspace_id
    group_id = session.key.group_id
    async with store.read() as conn:
        workspace = await get_workspace(conn, workspace_id)
        group = None if group_id is None else await find_named_group(conn, workspace_id, group_id)
        return Visitor(workspace.name, await owned_prefixes(conn, workspace_id), group)
