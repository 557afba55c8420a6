"""The spend of groups, by limits in currency, and their prepaid balances. Values only."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from policy.credentials import is_key_prefix
from policy.limits.groups import Enforcement
from policy.spend.effective import counting_groups
from policy.spend.key_names import key_name
from policy.spend.spend_hash import Reserved, spend_key


class SpendUse(NamedTuple):
    """The exact amount that a group has spent in a window, and the amount that its calls in flight reserve."""

    spent: Decimal
    reserved: Decimal


class SpendReading(NamedTuple):
    """The figures of several spend limits at one moment. `at_ms`: the time (epoch ms) whose windows they are of."""

    at_ms: int
    uses: tuple[SpendUse, ...]


class BalanceReading(NamedTuple):
    """The figures of a prepaid balance in the hash, all of one moment.

    `counted_ms`: the time through which events and withdrawals are counted. `drawn`: units (10^-22) that those took,
    withdrawals included. `reserved`: 10^-12, of calls and withdrawals that are not counted yet.
    """

    counted_ms: int
    drawn: int
    reserved: int


class TreeDraws(NamedTuple):
    """The units (10^-22) drawn from balances of a tree, withdrawals included, by group: of one moment.

    `counted_ms`: the time through which events and withdrawals are counted.
    """

    counted_ms: int
    drawn: Mapping[str, int]


class Withdrawal(NamedTuple):
    """A credit below 0 that is being made.

    `tree_key`: the hash of its tree. `deposited`: the sum of the group's credits above 0. `amount`: above 0, with at
    most 12 digits after the point. `key`: a ULID of now, as the sweep tells its age by it.
    """

    tree_key: str
    currency: str
    group_id: str
    deposited: Decimal
    amount: Decimal
    key: str


class SpendTree(NamedTuple):
    """A tree of groups that has a spend limit, of a group or of a key, or a balance. All of them have one currency.

    `prices`: another text whenever a price of the workspace was changed. `is_hard`: one of its limits is HARD, or it
    has a balance. `counts_keys`: one of its limits is a key's, so what each key spends is counted.
    """

    root_id: str
    workspace_id: str
    enforcement: Enforcement
    currency: str
    prices: str = ""
    is_hard: bool = False
    counts_keys: bool = False

    @property
    def key(self) -> str:
        """The hash that counts what the tree spends."""
        return spend_key(self.root_id)

    def counting_groups(self, path: str) -> Sequence[str]:
        """The groups whose spend a call with this path adds to. `path`: ids from the root, each with `/`."""
        return counting_groups(path.split("/")[-2::-1], self.enforcement)

    def counting_key(self, prefix: str, buckets: Mapping[str, str]) -> tuple[str, ...]:
        """The name of the key whose spend a call with the key of this prefix adds to; none if keys do not count.

        `buckets`: the prefix of the first key of a rotation, by that of each later one.
        """
        if not self.counts_keys or not is_key_prefix(prefix):
            return ()
        return (key_name(buckets.get(prefix, prefix)),)


class TreeEvent(NamedTuple):
    """An event of such a tree, with all that its cost depends on. Figures may be None: nothing of the kind."""

    timestamp_ms: int
    idempotency_key: str
    workspace_id: str
    group_path: str
    model_slug: str
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    service_tier: str | None
    cache_write_tokens: int | None
    cache_write_1h_tokens: int | None
    reasoning_tokens: int | None
    audio_input_tokens: int | None
    audio_output_tokens: int | None
    image_input_tokens: int | None
    image_output_tokens: int | None
    server_tool_calls: int | None
    charged: int
    api_key_prefix: str
    balance_group: str | None
    draw: str | None

    @property
    def root_id(self) -> str:
        return self.group_path.partition("/")[0]

    @property
    def group_id(self) -> str:
        """The group that called."""
        return self.group_path.split("/")[-2]


class TreeWithdrawal(NamedTuple):
    """A withdrawal from the prepaid balance of a group in such a tree. `units`: 10^-22 of the tree's currency."""

    timestamp_ms: int
    key: str
    root_id: str
    group_id: str
    units: int


class SpentEvent(NamedTuple):
    """The amounts that an event adds to what groups have spent and to what is drawn from a balance.

    `units`: 10^-22 of the tree's currency. `groups`: those that spend it, and the name of the key where keys count;
    none if its cost is in no currency or in another one. `balance`:
    its name in the hash, or "". `draw`: units, priced when the event was committed. A withdrawal has only a draw.
    Where nothing is added, the reservation of `key` ends all the same.
    """

    at_ms: int
    key: str
    groups: Sequence[str]
    units: int
    balance: str = ""
    draw: int = 0


class TreeCount(NamedTuple):
    """All events of a tree later than `after_ms` and through `through_ms`, in the order of time."""

    tree: SpendTree
    after_ms: int
    through_ms: int
    events: Sequence[SpentEvent]


class TreeBuild(NamedTuple):
    """All that a tree has spent through `through_ms`: units (10^-22) by field, those that are not 0.

    `counted_keys`: the events in these figures that may have reservations. `fields_before`: the fields of what was
    spent that are there now; those that are not in `spent` go.
    """

    through_ms: int
    spent: Mapping[str, int]
    counted_keys: Sequence[str] = ()
    fields_before: Sequence[str] = ()


COMPLETE = "complete"
DROPPED = "dropped"
AFTER_RESTORE = "-restored"
"""The end of the state of a tree that waits since the database was set back: it may have forgotten machines.

The state of a tree with a HARD limit is COMPLETE (all reservations are known to be in its hash), or DROPPED (it has no
HARD limit any more, and its hash does not know that yet), or it names a wait until machines have put their reservations
again: by the epoch and a nonce, with a blank between.
"""


def waiting_among(states: Mapping[str, str]) -> dict[str, str]:
    """The states of the trees that wait, by root."""
    return {root_id: state for root_id, state in states.items() if state not in (COMPLETE, DROPPED)}


class TreesToMend(NamedTuple):
    """The roots of trees whose hash is not as it is to be.

    `to_build`: nothing counts there, or earlier events are not counted. `incomplete`: what is there counts, and
    reservations may be missing (`h` is not the epoch).
    """

    to_build: frozenset[str]
    incomplete: frozenset[str]


class ProxyMachine(NamedTuple):
    """A machine of the proxy, by the last that it told, at `reported_at_ms` or up to 15 s later.

    `incarnations`: those of its workers that may still give events. `rebuilt`: by hash key, the state of a tree
    (see COMPLETE) for which all its reservations are in Redis, or its events committed.
    """

    name: str
    incarnations: frozenset[str]
    rebuilt: Mapping[str, str]
    reported_at_ms: int


class TreeReserves(NamedTuple):
    """The content of a tree's hash besides what is spent.

    `counted_ms`: the time through which events are counted; None if nothing is. `stamp`: names the last repair.
    `reservations`: by the event's key; None for an empty one. `reserved`: by group, 10^-12 of the currency.
    `spent_fields`: the names of the fields of what is spent. `is_of_one_moment`: false where there were too many
    fields to be read at once; then sums need not fit.
    """

    counted_ms: int | None
    stamp: bytes
    reservations: Mapping[str, Reserved | None]
    reserved: Mapping[str, int]
    spent_fields: Sequence[str]
    is_of_one_moment: bool = True


class CreditRecord(NamedTuple):
    """A credit of a group's balance, in the balance's currency. One below 0 is a withdrawal.

    `key`: a ULID, that of a withdrawal's reservation. `reference`: the operator's name for it, one per group.
    `timestamp_ms`: a withdrawal is counted by it, as an event is by its own.
    """

    key: str
    group_id: str
    reference: str
    amount: Decimal
    note: str | None
    timestamp_ms: int

    @property
    def position(self) -> "EntryPosition":
        return EntryPosition(self.timestamp_ms, 1, self.key)


class HourDraws(NamedTuple):
    """The draws of the calls through a slug in the UTC hour that starts at `hour_ms`. `units`: 10^-22 of the currency.

    Calls that draw nothing are in none.
    """

    group_id: str
    hour_ms: int
    slug: str
    calls: int
    units: int

    @property
    def position(self) -> "EntryPosition":
        return EntryPosition(self.hour_ms, 0, self.slug)


class EntryPosition(NamedTuple):
    """The place of an entry in the ledger. `is_credit`: 1, or 0 for a draw. `name`: a credit's key, a draw's slug."""

    at_ms: int
    is_credit: int
    name: str


Entry = CreditRecord | HourDraws
