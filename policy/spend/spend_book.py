"""The spend of a tree, in plain Python: the reference for every script that reads or writes its Redis hash. Pure.

Proxies take, end and give back calls; control counts their events, withdraws, builds the hash anew and sweeps it.

See docs/reference/money.md#how-spend-is-counted.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from policy.limits.kinds import USAGE_UNITS
from policy.limits.windows import until_end_ms
from policy.spend.effective import Ceiling, SpendPlan
from policy.spend.key_names import key_of_name
from policy.spend.spend_hash import (
    COMPLETE_FIELD,
    COUNTED_FIELD,
    EPOCH_FIELD,
    KEYS_COUNTED,
    RESERVATION_PREFIX,
    RESERVED_PREFIX,
    UNITS_PER_PICO,
    Reserved,
    amount_of_picos,
    pack_amount,
    pack_reservation,
    pack_spent,
    picos_of_amount,
    spent_field,
)


class Call(NamedTuple):
    """A call that asks to be admitted. `picos`: what it is expected to cost, in 10^-12.

    In a plan with HARD limits or a balance: the most that it can cost, at least `least`, without which it is not
    admitted.
    """

    event_key: str
    picos: int
    least: int = 0


class SpendAdmission(NamedTuple):
    """The answer to the calls of one take.

    `admitted`: how many of them, in order. `refused_by`: the number, from 1, of the first ceiling that refused the
    rest; 0: none. `wait_ms`: until the last of the limits' windows ends whose spend alone leaves no room; 0: there is
    none. If the balance refused: 1 if what is drawn alone leaves no room, else 0. `grants`: in a plan that is hard,
    what each admitted call may cost, in picos.
    """

    admitted: int
    refused_by: int = 0
    wait_ms: int = 0
    grants: tuple[int, ...] = ()


class IncompleteReservationsError(Exception):
    """Reservations may be missing, so a plan with HARD limits or a balance admits nothing."""


class CountableEvent(NamedTuple):
    """A committed event. `units`: its exact cost, in 10^-22. `groups`: those whose spend it adds to.

    `draw`: the units that it draws from the balance of that name. A withdrawal has no groups and only a draw.
    """

    event_key: str
    timestamp_ms: int
    units: int
    groups: tuple[str, ...]
    balance: str = ""
    draw: int = 0


class CountOutcome(Enum):
    """The outcome of a round of counting. All but COUNTED ask for a build of the hash."""

    COUNTED = "counted"
    BEHIND = "behind"
    ABSENT = "absent"


class SpendBook:
    """The hash of one tree (`policy/spend/spend_hash.py`).

    `epoch`: that of the server under which control has counted; without it, nothing counts. `complete_epoch`: that
    under which all reservations are here. `spent`: units, by field of the hash. `reserved`: picos, by group.
    `reservations`: by event key; None is a marker, which keeps a late take from reserving anything.
    """

    __slots__ = ("complete_epoch", "counted_ms", "epoch", "reservations", "reserved", "spent")

    def __init__(self) -> None:
        self.epoch = ""
        self.complete_epoch = ""
        self.counted_ms = 0
        self.spent: dict[str, int] = {}
        self.reserved: dict[str, int] = {}
        self.reservations: dict[str, Reserved | None] = {}

    def admit(self, plan: SpendPlan, calls: Sequence[Call], incarnation: str, clock_ms: int) -> SpendAdmission | None:
        """Admit calls in order, until a ceiling has no room. None: nothing is counted, and all are admitted.

        The present window is that of Redis' clock, or of `counted_ms` if that is later: the clock has stepped back.
        Raises `IncompleteReservationsError`.
        """
        if not self.epoch:
            return None
        if plan.is_hard and not (self._is_complete() and self._counts_key_of(plan)):
            raise IncompleteReservationsError
        grants: list[int] = []
        at_ms = max(clock_ms, self.counted_ms)
        for number, call in enumerate(calls):
            grant = call.picos
            if call.event_key not in self.reservations:  # else it was given up before it was made
                refused_by = self._refusing(plan, at_ms, call.least)
                if refused_by:
                    full = self._full(plan, at_ms, call.least)
                    wait_ms = _wait_ms(plan.ceilings[refused_by - 1], full, at_ms, clock_ms)
                    return SpendAdmission(number, refused_by, wait_ms, tuple(grants))
                grant = min((self._room(one, at_ms) for one in plan.ceilings if one.is_hard), default=grant)
                grant = min(grant, call.picos)
                self.put(call.event_key, Reserved(grant, incarnation, plan.groups))
            if plan.is_hard:
                grants.append(grant)
        return SpendAdmission(len(calls), grants=tuple(grants))

    def put(self, event_key: str, reserved: Reserved) -> None:
        """Make a reservation, where there is neither one nor a marker."""
        if event_key not in self.reservations:
            self.reservations[event_key] = reserved
            self._raise(reserved.groups, reserved.picos)

    def end(self, event_key: str, picos: int) -> None:
        """Set the reservation of a dispatched call to its cost. Without one, its event is counted."""
        reservation = self.reservations.get(event_key)
        if reservation is not None:
            self._lower(reservation.groups, reservation.picos)
            self._raise(reservation.groups, picos)
            self.reservations[event_key] = reservation._replace(picos=picos)

    def give_back(self, event_key: str) -> None:
        """Return the reservation of a call that was never dispatched."""
        if self.reservations.get(event_key) is not None:
            self.release(event_key)

    def give_up(self, event_key: str) -> None:
        """Return the reservation of a call whose take may still run: then it reserves nothing."""
        if event_key in self.reservations:
            self.give_back(event_key)
        else:
            self.reservations[event_key] = None

    def release(self, event_key: str) -> None:
        """End a reservation, or drop a marker: its event is counted, or cannot come any more."""
        reservation = self.reservations.pop(event_key, None)
        if reservation is not None:
            self._lower(reservation.groups, reservation.picos)

    def withdraw(self, name: str, deposited: int, event_key: str, reserved: Reserved) -> bool:
        """Reserve a withdrawal from the balance of that name until it is counted. False: there is no room for it.

        `deposited`: picos that were paid in. The same again changes nothing. Raises `IncompleteReservationsError`.
        """
        if not self._is_complete():
            raise IncompleteReservationsError
        if event_key in self.reservations:
            return True
        balance = Ceiling(amount_of_picos(deposited), name, None, is_hard=True)
        if self._room(balance, self.counted_ms) < reserved.picos:
            return False
        self.put(event_key, reserved)
        return True

    def count(self, after_ms: int, through_ms: int, epoch: str, events: Sequence[CountableEvent]) -> CountOutcome:
        """Count the events of (`after_ms`, `through_ms`] that are not counted yet, each in the window of its timestamp.

        BEHIND: events of before `after_ms` are missing. ABSENT: another server, or one that has lost the hash.
        """
        if self.epoch != epoch:
            return CountOutcome.ABSENT
        if self.counted_ms < after_ms:
            return CountOutcome.BEHIND
        for event in events:
            if event.timestamp_ms > self.counted_ms:
                for group in event.groups:
                    for unit in USAGE_UNITS:
                        name = spent_field(group, unit, event.timestamp_ms)
                        self.spent[name] = self.spent.get(name, 0) + event.units
                if event.draw:
                    name = spent_field(event.balance, None, event.timestamp_ms)
                    self.spent[name] = self.spent.get(name, 0) + event.draw
                self.release(event.event_key)
        self.counted_ms = max(self.counted_ms, through_ms)
        return CountOutcome.COUNTED

    def build(self, epoch: str, through_ms: int, spent: Mapping[str, int]) -> None:
        """Set what is spent through a time, by field, in units. Reservations stay, also of events that it has."""
        self.epoch = epoch
        self.counted_ms = through_ms
        self.spent = dict(spent)

    def complete(self, epoch: str, missing: Mapping[str, Reserved]) -> None:
        """Put what is missing. `epoch`: the one under which all reservations are here then."""
        for event_key, reserved in missing.items():
            self.put(event_key, reserved)
        self.complete_epoch = epoch

    def fields(self) -> dict[bytes, bytes]:
        """The fields of the hash."""
        fields = {name: pack_spent(units) for name, units in self.spent.items()}
        fields |= {RESERVED_PREFIX + group: pack_amount(picos) for group, picos in self.reserved.items()}
        for event_key, reservation in self.reservations.items():
            packed = b"" if reservation is None else pack_reservation(reservation)
            fields[RESERVATION_PREFIX + event_key] = packed
        if self.epoch:
            fields |= {EPOCH_FIELD: self.epoch.encode(), COUNTED_FIELD: b"%d" % self.counted_ms}
        if self.complete_epoch:
            fields[COMPLETE_FIELD] = self.complete_epoch.encode()
        return {name.encode(): packed for name, packed in fields.items()}

    def _is_complete(self) -> bool:
        return self.complete_epoch != "" and self.complete_epoch == self.epoch.split(" ", 1)[0]

    def _counts_key_of(self, plan: SpendPlan) -> bool:
        """Return whether what the plan's key spends is counted here, if it has limits of its own."""
        return key_of_name(plan.groups[0]) is None or KEYS_COUNTED in self.epoch

    def _refusing(self, plan: SpendPlan, at_ms: int, least: int) -> int:
        """The number of the first ceiling without room; 0: all have some."""
        for place, ceiling in enumerate(plan.ceilings, 1):
            if _is_full(ceiling, self._room(ceiling, at_ms), least):
                return place
        return 0

    def _room(self, ceiling: Ceiling, at_ms: int) -> int:
        """Picos; less than 0 if the amount is exceeded. Events of the window that has `counted_ms` may still come, so a
        HARD limit needs room there, too."""
        spent = self._spent(ceiling, at_ms)
        if ceiling.is_hard:
            spent = max(spent, self._spent(ceiling, self.counted_ms))
        return picos_of_amount(ceiling.amount) - spent - self.reserved.get(ceiling.name, 0)

    def _full(self, plan: SpendPlan, at_ms: int, least: int) -> list[Ceiling]:
        """The ceilings for which what is spent alone leaves no room."""
        rooms = [picos_of_amount(one.amount) - self._spent(one, at_ms) for one in plan.ceilings]
        return [one for one, room in zip(plan.ceilings, rooms, strict=True) if _is_full(one, room, least)]

    def _spent(self, ceiling: Ceiling, at_ms: int) -> int:
        """The spend that counts against it, in whole picos: rounded down for a SOFT limit, up for all else."""
        units = self.spent.get(spent_field(ceiling.name, ceiling.unit, at_ms), 0)
        return -(-units // UNITS_PER_PICO) if ceiling.is_hard else units // UNITS_PER_PICO

    def _raise(self, groups: Sequence[str], picos: int) -> None:
        for group in groups:
            self.reserved[group] = self.reserved.get(group, 0) + picos

    def _lower(self, groups: Sequence[str], picos: int) -> None:
        for group in groups:
            self.reserved[group] = max(0, self.reserved.get(group, 0) - picos)


def _is_full(ceiling: Ceiling, room: int, least: int) -> bool:
    return room < least if ceiling.is_hard else room <= 0


def _wait_ms(refusing: Ceiling, full: Sequence[Ceiling], at_ms: int, clock_ms: int) -> int:
    """`SpendAdmission.wait_ms`."""
    if refusing.unit is None:
        return int(refusing in full)
    ends = [until_end_ms(one.unit, at_ms) for one in full if one.unit is not None]
    return max(ends) + at_ms - clock_ms if ends else 0
