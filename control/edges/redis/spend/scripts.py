"""The scripts by which control counts what trees spend, and the packing of their arguments.

See docs/reference/money.md#how-spend-is-counted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from control.records.spend import AFTER_RESTORE, SpentEvent, TreeBuild, TreeCount, Withdrawal
from policy.spend.balances import balance_name
from policy.spend.script_constants import spend_constants
from policy.spend.spend_hash import (
    COMMITTED,
    RESERVATION_PREFIX,
    epoch_text,
    pack_amount,
    pack_spent,
    picos_of,
    picos_of_amount,
)
from runtime.redis.script import Argument, RedisScript

T = TypeVar("T")
EVENTS_AT_ONCE = 200
"""Events that one run of the script counts, in about a millisecond, unless more have one timestamp."""


def script(name: str) -> RedisScript:
    """One of the scripts in this folder, with the Lua of money before it."""
    texts = (_lua("policy.limits", "month"), _lua("policy.spend", "money"), _lua("control.edges.redis.spend", name))
    return RedisScript(spend_constants() + "".join(texts))


def _lua(package: str, name: str) -> str:
    return resources.files(package).joinpath(f"{name}.lua").read_text("utf-8")


def parts_of(count: TreeCount) -> Iterator[TreeCount]:
    """The count in consecutive parts, of some events each. No part splits the events of one timestamp."""
    after_ms = count.after_ms
    part: list[SpentEvent] = []
    for at_ms, events in groupby(count.events, key=attrgetter("at_ms")):
        of_one_time = list(events)
        if part and len(part) + len(of_one_time) > EVENTS_AT_ONCE:
            yield count._replace(after_ms=after_ms, through_ms=part[-1].at_ms, events=part)
            after_ms = part[-1].at_ms
            part = []
        assert at_ms > after_ms
        part += of_one_time
    yield count._replace(after_ms=after_ms, events=part)


def count_arguments(epoch: str, count: TreeCount) -> list[Argument]:
    arguments: list[Argument] = [epoch, count.after_ms, count.through_ms]
    for event in count.events:
        groups = "".join(f"{group}/" for group in event.groups)
        draw = (event.balance, pack_spent(event.draw)) if event.draw else ("", "")
        arguments += (event.at_ms, event.key, groups, pack_spent(event.units), *draw)
    return arguments


def build_arguments(epoch: str, build: TreeBuild) -> list[Argument]:
    arguments: list[Argument] = [epoch, build.through_ms, len(build.spent)]
    for field, units in build.spent.items():
        arguments += (field, pack_spent(units))
    return [*arguments, *build.fields_before]


def begin_arguments(epoch: str, nonce: str) -> list[Argument]:
    return [epoch, f"{epoch.partition(' ')[0]} {nonce}", AFTER_RESTORE]


def complete_arguments(epoch: str, state: str, next_state: str, events: Sequence[SpentEvent]) -> list[Argument]:
    """Events that count for no group and draw from no balance need no reservation."""
    arguments: list[Argument] = [epoch, state, next_state, COMMITTED]
    for event in events:
        names = [*event.groups, event.balance] if event.draw else event.groups
        if names:
            groups = "".join(f"{name}/" for name in names)
            units = max(event.units, event.draw)  # a reservation has one amount
            arguments += (event.at_ms, event.key, groups, pack_amount(picos_of(units)))
    return arguments


def withdraw_arguments(epoch: str, withdrawal: Withdrawal) -> list[Argument]:
    """`epoch`: that of the server."""
    name = balance_name(withdrawal.group_id)
    return [
        epoch_text(epoch, withdrawal.currency),
        name,
        pack_amount(picos_of_amount(withdrawal.deposited)),
        pack_amount(picos_of_amount(withdrawal.amount)),
        f"{RESERVATION_PREFIX}{withdrawal.key}",
        f"{COMMITTED}{name}/",
    ]


def repair_arguments(stamp: bytes, next_stamp: str, drifts: Mapping[str, int]) -> list[Argument]:
    """`drifts`: by group, how much more than now is reserved there, in 10^-12."""
    arguments: list[Argument] = [stamp, next_stamp]
    for group, picos in drifts.items():
        arguments += (group, pack_amount(max(0, picos)), pack_amount(max(0, -picos)))
    return arguments


def in_portions(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
