"""Sweeps the hash of a tree: ends reservations of calls that will never do so themselves, forgets past windows.

A reservation goes where its event is counted (the tree was built since), or where its worker is dead and its journal
committed, which is so when no machine names the incarnation any more. Then what groups have reserved is set right.

See docs/reference/money.md#how-spend-is-counted.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from ulid import ULID

from control.edges.sql.group_rows import paths_of
from control.edges.sql.spend.counted_trees import times_of_events
from control.edges.sql.spend.machines import named_incarnations
from control.edges.sql.store import Store, now_ms
from control.records.spend import SpendTree, TreeReserves
from control.resources.spend.tree_hashes import TreeHashes
from control.resources.spend.tree_sums import kept_windows
from policy.spend.balances import group_of_balance
from policy.spend.spend_hash import BALANCE_WINDOW, COMMITTED, SPENT_PREFIX

DEAD_AFTER_MS = 120_000
"""The age of a reservation from which a machine must name its incarnation: each tells of its own every two seconds."""
MARKER_LASTS_MS = 3_600_000
"""The age from which an empty reservation goes: no take runs so late."""
KEYS_AT_ONCE = 1000


async def sweep_tree(store: Store, hashes: TreeHashes, tree: SpendTree, *, are_machines_known: bool) -> int:
    """Sweep one tree; returns how many reservations it ended. `are_machines_known`: whether the dead are known too."""
    async with store.read() as conn:  # before the events are looked up: by then those of the dead are committed
        living = await named_incarnations(conn) if are_machines_known else None
    reserves = await hashes.reserves(tree)
    if reserves.counted_ms is None:
        return 0
    drifts = drifts_of(reserves)
    if drifts:
        await hashes.repair(tree, reserves.stamp, drifts)
    await hashes.delete_spent(tree, await _past_fields(store, reserves.spent_fields, kept_windows(reserves.counted_ms)))
    return await hashes.release(tree, await _ended(store, reserves, living), reserves.counted_ms)


async def _past_fields(store: Store, fields: Sequence[str], windows: Collection[str]) -> list[str]:
    """The fields of what was spent in windows that are past, and of balances whose group is deleted.

    The groups are read after the fields: a list from before may lack a balance that a field is of.
    """
    names = {field: field.removeprefix(SPENT_PREFIX).rpartition(":") for field in fields}
    drawn = {field: group_of_balance(name) for field, (name, _, window) in names.items() if window == BALANCE_WINDOW}
    async with store.read() as conn:
        present = await paths_of(conn, drawn.values())
    past = [field for field, (_, _, window) in names.items() if field not in drawn and window not in windows]
    return past + [field for field, group_id in drawn.items() if group_id not in present]


def drifts_of(reserves: TreeReserves) -> Mapping[str, int]:
    """The amount (10^-12) that each group should have reserved more than now, where that is not 0 and is known."""
    if not reserves.is_of_one_moment:
        return {}
    sums: dict[str, int] = defaultdict(int)
    for reservation in reserves.reservations.values():
        if reservation is not None:
            for group in reservation.groups:
                sums[group] += reservation.picos
    groups = {*sums, *reserves.reserved}
    drifts = {group: sums.get(group, 0) - reserves.reserved.get(group, 0) for group in groups}
    return {group: picos for group, picos in sorted(drifts.items()) if picos}


async def _ended(store: Store, reserves: TreeReserves, living: Collection[str] | None) -> list[str]:
    """The events whose reservations end."""
    assert reserves.counted_ms is not None
    present_ms = now_ms()
    keys = [
        key
        for key, reservation in reserves.reservations.items()
        if reservation is None and made_ms(key) < present_ms - MARKER_LASTS_MS
    ]
    reservations = {key: one for key, one in reserves.reservations.items() if one is not None}
    times = await _event_times(store, [*reservations])
    for key, reservation in reservations.items():
        # A withdrawal whose commit hangs is stamped behind what is counted, and holds it up.
        last_ms = min(present_ms, reserves.counted_ms) if reservation.incarnation == COMMITTED else present_ms
        is_old = made_ms(key) < last_ms - DEAD_AFTER_MS
        is_dead = is_old and living is not None and reservation.incarnation not in living
        # An event that is committed and not counted yet ends its reservation itself.
        if times[key] <= reserves.counted_ms if key in times else is_dead:
            keys.append(key)
    return keys


async def counted_keys(store: Store, keys: Sequence[str], through_ms: int) -> list[str]:
    """The keys of those of these events and withdrawals that are committed with a timestamp up to this time."""
    return [key for key, at_ms in (await _event_times(store, keys)).items() if at_ms <= through_ms]


async def _event_times(store: Store, keys: Sequence[str]) -> Mapping[str, int]:
    """The timestamps of those of these events and withdrawals that are committed, by key."""
    times: dict[str, int] = {}
    for start in range(0, len(keys), KEYS_AT_ONCE):
        async with store.read() as conn:
            times |= await times_of_events(conn, keys[start : start + KEYS_AT_ONCE])
    return times


def made_ms(event_key: str) -> int:
    """The time at which a key was made: it is a ULID. 0 for another one, which no proxy makes."""
    try:
        return int(ULID.from_str(event_key).milliseconds)
    except ValueError:
        return 0
