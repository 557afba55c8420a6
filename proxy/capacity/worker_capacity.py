"""Admission to one worker: calls in flight, memory held, calls parked, and when to shed (529).

Pure bookkeeping. Nothing here waits: replicas are waited for in `edges/process/replica_requests.py`.

See docs/reference/inference.md#capacity.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from proxy.refusals import ShedError

IN_FLIGHT = "in_flight"
MEMORY = "memory"
PARKED = "parked"
"""The resources."""
WORKER = "worker"
WORKSPACE = "workspace"
GROUP = "group"
"""Names of the bounds that refuse: the worker's, the workspace's, the group's. A workspace key counts as a group."""
IDLE_KEPT = 4096
"""The number of groups from which those without calls are removed. The next call of one that is kept finds it."""


@dataclass(frozen=True, slots=True)
class CapacityLimits:
    """The load that one worker accepts before it sheds, and one workspace's share of it (decision 0015)."""

    max_in_flight: int = 10_000
    max_parked: int = 5_000
    max_held_bytes: int = 1 << 30
    """Request bodies and non-streamed answers in memory, over all calls."""
    workspace_share: float = 0.75
    """The part of each resource that a single workspace may use if it is alone; above 0, below 1."""


@dataclass(slots=True)
class Holdings:
    """The load of all calls of one workspace, or of one group."""

    name: str
    in_flight: int = 0
    parked: int = 0
    held_bytes: int = 0


@dataclass(slots=True)
class GroupHoldings(Holdings):
    """The load of all calls of one group, with that of its workspace."""

    workspace: Holdings = field(default_factory=lambda: Holdings(""))


@dataclass(slots=True)
class Capacity:
    """One worker's use of its resources, with an entry per workspace and group that has calls in flight or had some.

    A workspace may use `share / (1 - share)` times what is still free; each of its groups may use as many times what
    the workspace may still use. So something stays free for the next workspace. The first call of a workspace or group,
    and its only body, may use whatever is free.
    """

    limits: CapacityLimits = field(default_factory=CapacityLimits)
    in_flight: int = 0
    parked: int = 0
    held_bytes: int = 0
    workspaces: dict[str, Holdings] = field(default_factory=dict)
    groups: dict[str, GroupHoldings] = field(default_factory=dict)
    unknown: GroupHoldings = field(default_factory=lambda: GroupHoldings(""))
    """Calls whose key is not known yet. They may hold no memory, and are counted in none of these."""
    _sheds: dict[tuple[str, str], int] = field(default_factory=dict)
    _times: float = 0.0
    on_busy: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    """Called when the first call comes in flight."""
    enter: "Callable[[], CallLoad]" = field(init=False, repr=False, compare=False)
    """Add a call whose key is not known yet. Raises `ShedError`."""
    ample_in_flight: float = 0.0
    ample_held_bytes: float = 0.0
    """Up to these totals no check is needed: a single group could use it all."""
    _sweep_at: int = IDLE_KEPT

    def __post_init__(self) -> None:
        limits = self.limits
        self.enter = partial(CallLoad, self)  # a method would cost each call a second frame
        self._times = times = limits.workspace_share / (1 - limits.workspace_share)
        ample = times * times / (1 + times + times * times)
        self.ample_in_flight = ample * limits.max_in_flight
        self.ample_held_bytes = ample * limits.max_held_bytes

    def check(self, what: str, free: int, more: int, *uses: int) -> None:
        """Raise `ShedError` unless the call may use `more` of `what` while `free` is free.

        `uses`: how much of it the call's workspace, its group and the call itself use.
        """
        of_workspace, of_group, of_call = uses
        if not more:
            return
        if more > free:
            raise self.shed(what, WORKER)
        before_last = more - 1  # as if taken one by one
        share = self._times * (free - before_last) - of_workspace - before_last
        if share < 1 and of_workspace > of_call:
            raise self.shed(what, WORKSPACE)
        if of_group + more > self._times * share and of_group > of_call:
            raise self.shed(what, GROUP)

    def new_group(self, workspace: str, turn: str) -> GroupHoldings:
        """Add and return the holdings of a group without calls. Those of idle groups make room when there are many."""
        if len(self.groups) >= self._sweep_at:
            self.groups = {name: one for name, one in self.groups.items() if one.in_flight}
            self.workspaces = {name: one for name, one in self.workspaces.items() if one.in_flight}
            self._sweep_at = max(IDLE_KEPT, 2 * len(self.groups))
        of_workspace = self.workspaces.get(workspace)
        if of_workspace is None:
            of_workspace = self.workspaces[workspace] = Holdings(workspace)
        group = self.groups[turn] = GroupHoldings(turn, workspace=of_workspace)
        return group

    def taken_sheds(self) -> dict[tuple[str, str], int]:
        """Take the number of calls shed since the last call of this method, by (resource, bound)."""
        sheds = self._sheds
        self._sheds = {}
        return sheds

    def shed(self, what: str, whose: str) -> ShedError:
        """Count a call that the bound of `whose` refuses; the caller raises what this returns."""
        self._sheds[what, whose] = self._sheds.get((what, whose), 0) + 1
        return ShedError()


class CallLoad:
    """One call's use of the worker: the stages' `Load`. Each method is one frame as long as free capacity is ample."""

    __slots__ = ("_books", "_group", "held_bytes")

    def __init__(self, books: Capacity) -> None:
        in_flight = books.in_flight
        if in_flight >= books.limits.max_in_flight:
            raise books.shed(IN_FLIGHT, WORKER)
        if not in_flight:
            books.on_busy()
        books.in_flight = in_flight + 1
        self._books = books
        self._group = books.unknown
        self.held_bytes = 0

    def claim(self, workspace: str, turn: str) -> None:
        books = self._books
        group = books.groups.get(turn) or books.new_group(workspace, turn)
        if books.in_flight > books.ample_in_flight:
            free = books.limits.max_in_flight - books.in_flight + 1  # this call is already counted
            books.check(IN_FLIGHT, free, 1, group.workspace.in_flight, group.in_flight, 0)
        group.in_flight += 1
        group.workspace.in_flight += 1
        self._group = group

    def expect(self, size_bytes: int) -> None:
        books = self._books
        group = self._group
        own = self.held_bytes
        if books.held_bytes + size_bytes > books.ample_held_bytes:
            free = books.limits.max_held_bytes - books.held_bytes
            books.check(MEMORY, free, size_bytes, group.workspace.held_bytes, group.held_bytes, own)

    def hold(self, size_bytes: int) -> None:
        books = self._books
        group = self._group
        held_bytes = books.held_bytes + size_bytes
        if held_bytes > books.ample_held_bytes:
            self.expect(size_bytes)
        books.held_bytes = held_bytes
        self.held_bytes += size_bytes
        group.held_bytes += size_bytes
        group.workspace.held_bytes += size_bytes

    def drop(self) -> None:
        held_bytes = self.held_bytes
        self.held_bytes = 0
        self._books.held_bytes -= held_bytes
        self._group.held_bytes -= held_bytes
        self._group.workspace.held_bytes -= held_bytes

    def park(self) -> None:
        books = self._books
        group = self._group
        free = books.limits.max_parked - books.parked
        books.check(PARKED, free, 1, group.workspace.parked, group.parked, 0)
        self._count_parked(1)

    def unpark(self) -> None:
        self._count_parked(-1)

    def leave(self) -> None:
        books = self._books
        group = self._group
        held_bytes = self.held_bytes
        workspace = group.workspace
        books.held_bytes -= held_bytes
        group.held_bytes -= held_bytes
        workspace.held_bytes -= held_bytes
        books.in_flight -= 1
        if group is books.unknown:
            return
        group.in_flight -= 1
        workspace.in_flight -= 1

    def _count_parked(self, calls: int) -> None:
        self._books.parked += calls
        self._group.parked += calls
        self._group.workspace.parked += calls
