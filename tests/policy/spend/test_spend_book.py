"""The reference of what a tree spends. tests/contracts/redis holds it and the scripts together."""

from decimal import Decimal

import pytest

from policy.limits.groups import Enforcement
from policy.limits.kinds import Unit
from policy.limits.windows import DAY_MS
from policy.spend.balances import Balance
from policy.spend.effective import SpendPlan, spend_plan
from policy.spend.limits import SpendEnforcement, SpendLimit
from policy.spend.spend_book import (
    Call,
    CountableEvent,
    CountOutcome,
    IncompleteReservationsError,
    SpendAdmission,
    SpendBook,
)
from policy.spend.spend_hash import LIMB, UNITS_PER_PICO, Reserved, spent_field, unpack_reservation, unpack_spent

NOON_MS = 20_000 * DAY_MS + DAY_MS // 2
WORKER = "0123456789abcdef"
RUN = "r" * 40


def plan_of(amount: str, *path: str, mode: SpendEnforcement = SpendEnforcement.SOFT) -> SpendPlan:
    limit = SpendLimit(Unit.DAY, Decimal(amount), "EUR", mode)
    plan = spend_plan(path, Enforcement.CASCADING, [()] * (len(path) - 1) + [(limit,)], [None] * len(path))
    assert plan is not None
    return plan


PLAN = plan_of("1", "team", "root")
HARD_PLAN = plan_of("1", "team", "root", mode=SpendEnforcement.HARD)


def built() -> SpendBook:
    book = SpendBook()
    book.build(RUN, NOON_MS, {})
    return book


def event(key: str, units: int, *, at_ms: int = NOON_MS + 1) -> CountableEvent:
    return CountableEvent(key, at_ms, units, PLAN.groups)


def test_a_book_that_nobody_keeps_admits_everything() -> None:
    book = SpendBook()
    assert book.admit(PLAN, [Call("a", 9 * LIMB)], WORKER, NOON_MS) is None
    assert book.fields() == {}


def test_a_call_is_admitted_while_there_is_room_and_reserves_up_the_tree() -> None:
    book = built()
    assert book.admit(PLAN, [Call("a", 3 * LIMB), Call("b", 1)], WORKER, NOON_MS) == SpendAdmission(1, 1, 0)
    assert book.reserved == {"team": 3 * LIMB, "root": 3 * LIMB}
    book.end("a", LIMB - 1)
    assert book.admit(PLAN, [Call("b", 1)], WORKER, NOON_MS) == SpendAdmission(1)
    book.give_back("b")
    book.give_back("b")
    book.end("b", 5)
    assert book.reserved == {"team": LIMB - 1, "root": LIMB - 1}


def test_a_call_that_was_given_up_reserves_nothing_later() -> None:
    book = built()
    book.give_up("a")
    assert book.admit(PLAN, [Call("a", 5)], WORKER, NOON_MS) == SpendAdmission(1)
    assert book.reserved == {}
    book.admit(PLAN, [Call("b", 5)], WORKER, NOON_MS)
    book.give_up("b")
    assert book.reserved["root"] == 0
    assert book.fields()[b"pa"] == b""


def test_a_counted_event_is_spent_and_not_reserved_any_more() -> None:
    book = built()
    book.admit(PLAN, [Call("a", 7)], WORKER, NOON_MS)
    counted = event("a", 12)
    assert book.count(NOON_MS, NOON_MS + 5, RUN, [counted]) is CountOutcome.COUNTED
    assert book.count(NOON_MS, NOON_MS + 5, RUN, [counted]) is CountOutcome.COUNTED, "an event counts once"
    assert book.reserved == {"team": 0, "root": 0}
    assert set(book.spent.values()) == {12}
    assert unpack_spent(book.fields()[spent_field("root", Unit.MONTH, NOON_MS).encode()]) == 12


def test_a_full_window_ends_at_midnight() -> None:
    book = built()
    book.count(NOON_MS, NOON_MS + 5, RUN, [event("a", LIMB * UNITS_PER_PICO)])
    assert book.admit(PLAN, [Call("b", 1)], WORKER, NOON_MS) == SpendAdmission(0, 1, DAY_MS // 2)
    assert book.admit(PLAN, [Call("b", 1)], WORKER, NOON_MS + DAY_MS // 2) == SpendAdmission(1)


def test_a_part_of_a_pico_fills_no_limit() -> None:
    book = built()
    book.count(NOON_MS, NOON_MS + 5, RUN, [event("a", LIMB * UNITS_PER_PICO - 1)])
    assert book.admit(PLAN, [Call("b", 1)], WORKER, NOON_MS) == SpendAdmission(1)


def test_counting_notices_what_it_missed() -> None:
    book = built()
    assert book.count(NOON_MS + 1, NOON_MS + 5, RUN, []) is CountOutcome.BEHIND
    assert book.count(NOON_MS, NOON_MS + 5, "s" * 40, []) is CountOutcome.ABSENT
    assert SpendBook().count(NOON_MS, NOON_MS + 5, RUN, []) is CountOutcome.ABSENT


def test_a_build_keeps_reservations() -> None:
    book = built()
    book.admit(PLAN, [Call("a", 7)], WORKER, NOON_MS)
    book.build(RUN, NOON_MS + 9, {spent_field("root", Unit.DAY, NOON_MS): 3})
    fields = book.fields()
    reservation = unpack_reservation(fields[b"pa"])
    assert reservation is not None
    assert (reservation.picos, reservation.incarnation, reservation.groups) == (7, WORKER, PLAN.groups)
    assert fields[b"c"] == b"%d" % (NOON_MS + 9)


def test_a_hard_limit_grants_no_more_than_there_is() -> None:
    book = built()
    with pytest.raises(IncompleteReservationsError):
        book.admit(HARD_PLAN, [Call("a", 5, 5)], WORKER, NOON_MS)
    missing = {"lost": Reserved(LIMB - 9, WORKER, HARD_PLAN.groups)}
    book.complete(RUN, missing)
    book.complete(RUN, missing)
    assert book.fields()[b"h"] == RUN.encode()
    calls = [Call("a", 5, 5), Call("b", 5, 1), Call("c", 1, 1)]
    assert book.admit(HARD_PLAN, calls, WORKER, NOON_MS) == SpendAdmission(2, 1, 0, (5, 4))
    assert book.reserved == {"team": LIMB, "root": LIMB}
    book.build("s" * 40, NOON_MS, {})
    with pytest.raises(IncompleteReservationsError):
        book.admit(HARD_PLAN, [Call("d", 0)], WORKER, NOON_MS)


BALANCE_PLAN = spend_plan(("team", "root"), Enforcement.INDEPENDENT, [(), ()], [None, Balance("EUR", Decimal(1))])


def whole() -> SpendBook:
    book = built()
    book.complete(RUN, {})
    return book


def test_a_call_draws_from_the_balance_until_nothing_is_left() -> None:
    assert BALANCE_PLAN is not None
    book = whole()
    calls = [Call("a", 5, 5), Call("b", LIMB, 1), Call("c", 1, 1)]
    assert book.admit(BALANCE_PLAN, calls, WORKER, NOON_MS) == SpendAdmission(2, 1, 0, (5, LIMB - 5))
    assert book.reserved == {"team": LIMB, "root*": LIMB}
    drawn = CountableEvent("b", NOON_MS + 1, 3, ("team",), balance="root*", draw=(LIMB - 5) * UNITS_PER_PICO)
    book.count(NOON_MS, NOON_MS + 1, RUN, [drawn])
    assert unpack_spent(book.fields()[b"sroot*:B"]) == drawn.draw
    assert book.reserved == {"team": 5, "root*": 5}
    book.give_back("a")
    later_ms = NOON_MS + 400 * DAY_MS
    assert book.admit(BALANCE_PLAN, [Call("c", 6, 6)], WORKER, later_ms) == SpendAdmission(0, 1, 1)
    assert book.admit(BALANCE_PLAN, [Call("c", 6, 5)], WORKER, later_ms) == SpendAdmission(1, grants=(5,))


def test_a_withdrawal_takes_no_more_than_there_is() -> None:
    book = whole()
    most = Reserved(LIMB, WORKER, ("root*",))
    assert book.withdraw("root*", LIMB, "w", most)
    assert book.withdraw("root*", LIMB, "w", most)
    assert book.reserved == {"root*": LIMB}
    assert not book.withdraw("root*", LIMB, "x", most._replace(picos=1))
    for incomplete in (SpendBook(), built()):
        with pytest.raises(IncompleteReservationsError):
            incomplete.withdraw("root*", LIMB, "w", most)
