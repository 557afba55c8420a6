"""HARD limits and balances above which more is spent: told once per window, with the reason.

See docs/reference/money.md#hard-limits and #balances.
"""

from typing import Any

import pytest

from control.records.spend import SpendTree
from control.resources.spend.overruns import Overruns
from policy.limits.kinds import Unit
from policy.spend.balances import balance_name
from policy.spend.spend_hash import pack_spent, spent_field
from tests.control.resources.spend.spend_world import LIMITS, SpendWorld

SPENT_UNITS = 5 * 10**22


class Looks:
    """Looks at a tree whose child has spent 5 EUR in this month, and drawn as much from its balance, if it has one."""

    def __init__(self, world: SpendWorld) -> None:
        self.world = world
        self.reasons: list[str] = []
        self.overruns = Overruns(world.store, world.hashes, self.reasons.append)
        self.tree = world.tree._replace(is_hard=True)
        self.path = world.paths[1][1].split("/")[:-1]

    async def limit(self, amount: str, enforcement: str = "HARD", group: int = -1) -> None:
        limit = LIMITS[0] | {"amount": amount, "enforcement": enforcement}
        await self.world.limit(self.path[group], [limit] if amount else [])

    async def look(self, **tree: Any) -> list[str]:
        """Look, with what is spent; returns what was told."""
        present: SpendTree = self.tree._replace(**tree)
        epoch = (await self.world.hashes.epochs([present]))[present.root_id]
        mapping: Any = {
            "e": epoch,
            "c": self.world.now_ms,
            spent_field(self.path[-1], Unit.MONTH, self.world.now_ms): pack_spent(SPENT_UNITS),
            spent_field(balance_name(self.path[-1]), None, self.world.now_ms): pack_spent(SPENT_UNITS),
        }
        self.world.client.hset(present.key, mapping=mapping)
        await self.overruns.look(present)
        reasons, self.reasons[:] = [*self.reasons], []
        return reasons


@pytest.fixture
async def looks(world: SpendWorld) -> Looks:
    return Looks(world)


async def test_amount_that_is_lowered_below_what_is_spent(looks: Looks, caplog: pytest.LogCaptureFixture) -> None:
    await looks.limit("5.00")
    assert await looks.look() == []
    await looks.limit("4.99")
    assert await looks.look() == ["amount"]
    assert f"Group {looks.path[-1]} has spent 5.00 of the 4.99 EUR a MONTH" in caplog.text
    assert await looks.look(prices="others") == [], "once per window"
    await looks.limit("6.00")
    assert await looks.look() == []


async def test_limit_that_is_new(looks: Looks) -> None:
    await looks.limit("4.00", "SOFT")
    assert await looks.look() == []
    await looks.limit("4.00")
    assert await looks.look() == ["amount"]


async def test_price_that_was_changed(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    await looks.limit("5.00")
    await looks.look()
    monkeypatch.setattr("tests.control.resources.spend.test_overruns.SPENT_UNITS", SPENT_UNITS + 1)
    assert await looks.look(prices="others") == ["price"]


async def test_database_that_was_set_back(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    await looks.limit("5.00")
    await looks.look()
    looks.overruns.note_restore()
    monkeypatch.setattr("tests.control.resources.spend.test_overruns.SPENT_UNITS", SPENT_UNITS + 1)
    assert await looks.look(prices="others") == ["restore"]


async def test_redis_that_was_another(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    await looks.limit("5.00")
    await looks.look()
    hashes = looks.world.hashes
    epochs, spend_of = hashes.epochs, hashes.spend_of

    async def others(trees: Any) -> Any:
        return {root_id: f"x{text}" for root_id, text in (await epochs(trees)).items()}

    async def before_it_changes(*arguments: Any) -> Any:
        reading = await spend_of(*arguments)
        monkeypatch.setattr(hashes, "epochs", others)
        return reading

    monkeypatch.setattr(hashes, "spend_of", before_it_changes)
    monkeypatch.setattr("tests.control.resources.spend.test_overruns.SPENT_UNITS", SPENT_UNITS + 1)
    assert await looks.look() == ["redis"]


async def test_what_changed_nothing_is_told_by_the_proxy(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    await looks.limit("5.00")
    await looks.look()
    monkeypatch.setattr("tests.control.resources.spend.test_overruns.SPENT_UNITS", SPENT_UNITS + 1)
    assert await looks.look() == []


async def test_limit_of_an_ancestor_bounds_each_group_of_an_independent_tree(looks: Looks) -> None:
    await looks.limit("", group=-1)
    await looks.limit("9.00", group=0)
    await looks.look()
    await looks.limit("4.00", group=0)
    is_independent = looks.tree.enforcement == "INDEPENDENT"
    assert await looks.look() == (["amount"] if is_independent else []), "the root itself has spent nothing"


async def test_tree_that_is_not_counted_tells_nothing(looks: Looks) -> None:
    await looks.limit("5.00")
    await looks.look()
    await looks.world.hashes.forget([looks.tree])
    await looks.overruns.look(looks.tree)
    assert looks.reasons == []


def spend_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.control.resources.spend.test_overruns.SPENT_UNITS", SPENT_UNITS + 1)


async def test_balance_from_which_more_is_drawn_than_was_paid_in(
    looks: Looks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await looks.limit("")
    await looks.world.deposit(looks.path[-1], "5")
    assert await looks.look() == [], "all of it"
    spend_more(monkeypatch)
    assert await looks.look(prices="others") == ["price"]
    text = (
        f"drawn 5.0000000000000000000001 of the 5.00 EUR that were paid into the balance of group {looks.path[-1]}: a"
    )
    assert text in caplog.text
    assert await looks.look(prices="more") == [], "once"
    await looks.world.deposit(looks.path[-1], "6")
    assert await looks.look(prices="others") == []


async def test_balance_in_a_database_that_was_set_back_to_before_a_top_up(looks: Looks) -> None:
    await looks.limit("")
    await looks.world.deposit(looks.path[-1], "6")
    await looks.look()
    looks.overruns.note_restore()
    await looks.world.deposit(looks.path[-1], "4")
    assert await looks.look() == ["restore"]


async def test_balance_that_overruns_by_nothing_that_changed_is_told_by_the_proxy(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    await looks.limit("")
    await looks.world.deposit(looks.path[-1], "5")
    await looks.look()
    spend_more(monkeypatch)
    assert await looks.look() == []
