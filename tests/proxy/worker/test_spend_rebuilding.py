"""A worker reserves again what its calls have reserved, and says so once all else is in its journal."""

from collections.abc import Mapping

from proxy.edges.process.channel import SupervisorLink
from proxy.worker.spend_rebuilding import SpendRebuilding

KEY = "tg:{grp_a|group}"


class Spend:
    def __init__(self) -> None:
        self.may_reserve = False
        self.rebuilt: dict[str, str] = {}
        self.questions: list[Mapping[str, str]] = []

    def rebuild(self, states: Mapping[str, str], /) -> None:
        self.questions.append(states)


class Journal:
    """Writes what waits. A call that ends during the write has its reservation put again already."""

    def __init__(self, spend: Spend) -> None:
        self._spend = spend
        self.place: tuple[int, int] | None = (1, 0)

    def write_now(self) -> None:
        self.place = (1, 100)
        self._spend.rebuilt["later"] = "e1 n1"


def test_nothing_is_reserved_before_a_message() -> None:
    spend = Spend()
    rebuilding = SpendRebuilding(spend, Journal(spend), SupervisorLink(lambda: None))
    rebuilding.health()
    assert not spend.may_reserve
    assert spend.questions == []


def test_message_says_that_calls_may_reserve_and_where_to_reserve_again() -> None:
    spend = Spend()
    rebuilding = SpendRebuilding(spend, Journal(spend), SupervisorLink(lambda: None))
    for states in ({}, {KEY: "e1 n1"}, {}):
        rebuilding.received({"is": "spend", "waiting": states})
        assert spend.may_reserve
    assert spend.questions == [{}, {KEY: "e1 n1"}, {}]


def test_health_has_what_was_rebuilt_before_the_journal_was_written() -> None:
    spend = Spend()
    spend.rebuilt = {KEY: "e1 n1"}
    rebuilding = SpendRebuilding(spend, Journal(spend), SupervisorLink(lambda: None))
    assert rebuilding.health() == {"rebuilt": {KEY: "e1 n1"}, "journal_place": (1, 100)}
