"""Checks that no call holds anything of a worker's capacity."""

from proxy.capacity.worker_capacity import Capacity, Holdings


def check_idle(capacity: Capacity) -> None:
    """Assert that nothing is held, in all and by each workspace and group that is kept."""
    holdings: tuple[Capacity | Holdings, ...] = (capacity, *capacity.workspaces.values(), *capacity.groups.values())
    for one in holdings:
        assert (one.in_flight, one.parked, one.held_bytes) == (0, 0, 0)
