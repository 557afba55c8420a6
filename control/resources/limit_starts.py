"""The start of usage limits that are added or changed: they count the calls of their window that are committed.

Counters are raised before the change is saved, so no proxy counts by it yet. Raising them to what is true does no harm
if the change fails afterwards or is made again.

See docs/reference/limits.md#days.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from control.edges.sql.billing.group_paths import PathPage, paths_from
from control.edges.sql.billing.group_sums import GroupSum, PathRange, group_sums
from control.edges.sql.store import Store
from control.errors import LimitStartUnavailableError, UsageUnavailableError
from control.long_work import beside
from control.records.events import EventWindow
from control.records.policy import GroupRecord
from control.records.usage import Bucket, BucketStart
from control.resources.group_usage import UsageSource
from policy.billing import Tokens
from policy.limits.counter_hash import number_of
from policy.limits.counter_layout import bucket_key
from policy.limits.groups import Enforcement
from policy.limits.kinds import Kind, Unit
from policy.limits.limit import MAX_THRESHOLD
from policy.limits.starts import UsageLimitKey, WindowCount
from policy.limits.windows import day_of, window_at

SUMS_AT_ONCE = 500
"""Pairs of a group and a slug whose calls are added up at once."""


@dataclass(frozen=True, slots=True)
class LimitsToStart:
    """Usage limits of a group that are about to be saved."""

    record: GroupRecord
    limits: frozenset[UsageLimitKey]

    @property
    def is_cascading(self) -> bool:
        """Return whether the group counts the calls of all groups below it. Otherwise each group counts its own."""
        return self.record.group.enforcement is Enforcement.CASCADING


async def start_limits(store: Store, usage: UsageSource, starting: LimitsToStart) -> None:
    """Raise the counters of the limits to what is committed, of all groups that they bind."""
    workspace_id = starting.record.group.workspace_id
    try:
        book = _CommittedCalls(starting, await usage.now_ms())
        async for sums in _sums(store, book):
            await beside(workspace_id, len(sums), partial(book.add, sums))
            if not starting.is_cascading:
                await usage.start(await beside(workspace_id, book.size, book.pop_starts))
        await usage.start(await beside(workspace_id, book.size, book.pop_starts))
    except UsageUnavailableError as error:
        raise LimitStartUnavailableError from error


class _UnitSum(NamedTuple):
    """Calls in the window of a unit."""

    unit: Unit
    sum: GroupSum


async def _sums(store: Store, book: "_CommittedCalls") -> AsyncIterator[Sequence[_UnitSum]]:
    """The sums of the group and of those below it, some groups at a time."""
    record = book.starting.record
    has_deleted = book.starting.is_cascading  # groups above count their calls; counters of their own have no use
    page = PathPage(max(1, SUMS_AT_ONCE // len(book.kinds)), has_deleted)
    after = ""
    while True:
        async with store.read() as conn:
            paths = await paths_from(conn, record.group.workspace_id, record.path, after, page)
            if not paths:
                return
            after = paths[-1]
            group_range = PathRange(paths[0], after, has_deleted)
            sums = [
                _UnitSum(unit, one)
                for unit, window in book.windows.items()
                for one in await group_sums(conn, window, group_range, book.kinds)
            ]
        yield sums


class _CommittedCalls:
    """The calls of counting groups, added up. `clock_ms`: Redis' clock, by which windows end."""

    def __init__(self, starting: LimitsToStart, clock_ms: int) -> None:
        self.starting = starting
        self.kinds: dict[str, list[Kind]] = defaultdict(list)
        """The kinds of the limits, by slug."""
        for slug, kind in starting.limits:
            self.kinds[slug].append(kind)
        workspace_id = starting.record.group.workspace_id
        units = {unit for _, (_, unit) in starting.limits}
        self.windows = {unit: EventWindow(workspace_id, *window_at(unit, clock_ms)) for unit in units}
        self._day = day_of(clock_ms)
        self._sums: dict[tuple[str, str, Unit], tuple[int, Tokens]] = {}

    @property
    def size(self) -> int:
        return len(self._sums)

    def add(self, sums: Sequence[_UnitSum]) -> None:
        for unit, one in sums:
            counting_group = self.starting.record.group.id if self.starting.is_cascading else one.group_id
            place = (counting_group, one.slug, unit)
            calls, tokens = self._sums.get(place, (0, Tokens()))
            total = Tokens(
                input=tokens.input + one.input_tokens,
                output=tokens.output + one.output_tokens,
                cached_input=tokens.cached_input + one.cached_input_tokens,
            )
            self._sums[place] = (calls + one.calls, total)

    def pop_starts(self) -> Sequence[BucketStart]:
        """Return what is added up, and empty the book."""
        counts: dict[Bucket, list[WindowCount]] = defaultdict(list)
        for (group_id, slug, unit), (calls, tokens) in self._sums.items():
            owner = self.starting.record.counting_owner if self.starting.is_cascading else group_id
            for kind in self.kinds[slug]:
                if kind[1] is unit:
                    counts[Bucket(bucket_key(owner, slug), group_id)].append(self._count(kind, calls, tokens))
        self._sums.clear()
        return [BucketStart(bucket, tuple(own)) for bucket, own in counts.items()]

    def _count(self, kind: Kind, calls: int, tokens: Tokens) -> WindowCount:
        type, _ = kind
        amount = calls if type.parts is None else type.amount(tokens)
        return WindowCount(kind, number_of(kind, self._day), min(amount, MAX_THRESHOLD))
