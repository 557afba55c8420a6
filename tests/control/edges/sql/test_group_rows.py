"""Groups as the database holds them."""

from control.edges.sql.group_rows import list_groups
from control.records.policy import GroupFilter
from tests.control.plane import ControlPlane


async def test_models_that_groups_share_are_parsed_once(sqlite_plane: ControlPlane) -> None:
    for name in ("one", "two"):
        await sqlite_plane.group(name)
    async with sqlite_plane.store.read() as conn:
        one, two = await list_groups(conn, sqlite_plane.workspace_id, GroupFilter(None, None), None, 10)
    assert one.group.models
    assert one.group.models is two.group.models
