"""A machine confirms a tree once no reservation of it can be missing, whatever dies or starts meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.edges.journal.supervisor.spend_rebuilds import SpendRebuilds
from runtime.background import running
from tests.waiting import eventually, until_still

A = "tg:{grp_a|group}"
B = "tg:{grp_b|group}"


class Worker:
    """A slot. `states`: the trees that its worker says it has rebuilt, at the next flush; None: it does not answer."""

    def __init__(self, incarnation: str, states: dict[str, str] | None = None) -> None:
        self.incarnation = incarnation
        self.health: dict[str, Any] = {}
        self.states = states
        self.place: tuple[int, int] | None = (1, 100)
        self.messages: list[dict[str, Any]] = []
        self.flushes = 0

    async def flush(self) -> bool:
        self.flushes += 1
        await asyncio.sleep(0)
        if self.states is not None:
            self.health = {"rebuilt": dict(self.states), "journal_place": self.place}
        return self.states is not None

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    def dies(self) -> None:
        self.incarnation = ""
        self.health = {}
        self.states = None

    def starts(self, incarnation: str, states: dict[str, str] | None = None) -> None:
        self.incarnation = incarnation
        self.states = states


class Machine:
    """Workers, and a shipper whose waits end when `is_committed`."""

    def __init__(self, *workers: Worker) -> None:
        self.workers = list(workers)
        self.waits: list[Mapping[str, tuple[int, int]]] = []
        self.is_committed = asyncio.Event()
        self.is_committed.set()
        self.news = 0
        self.rebuilds = SpendRebuilds(lambda: self.workers, self.committed, self.on_done)

    def tell(self, states: Mapping[str, str], reported: Mapping[str, str]) -> None:
        """Tell what control answered to a report that named all workers."""
        self.rebuilds.tell([worker.incarnation for worker in self.workers if worker.incarnation], states, reported)

    async def committed(self, places: Mapping[str, tuple[int, int]]) -> None:
        self.waits.append(dict(places))
        await self.is_committed.wait()

    def on_done(self) -> None:
        self.news += 1

    @property
    def confirmed(self) -> dict[str, str]:
        return self.rebuilds.confirmed

    async def looks_again(self) -> None:
        """Return when it has asked all workers once more, and has made of it what it makes."""
        flushes = [worker.flushes for worker in self.workers]
        await eventually(
            lambda: all(one.flushes > before + 1 for one, before in zip(self.workers, flushes, strict=True))
        )


@asynccontextmanager
async def serving(*workers: Worker) -> AsyncIterator[Machine]:
    machine = Machine(*workers)
    async with running(machine.rebuilds.run):
        yield machine


def trees(*names: str, epoch: str = "e1 n1") -> dict[str, str]:
    return dict.fromkeys(names, epoch)


def sent(workers: Iterable[Worker]) -> list[dict[str, str]]:
    """The trees that each was told of last."""
    return [worker.messages[-1]["waiting"] for worker in workers]


async def test_a_tree_is_confirmed_when_all_workers_have_rebuilt_it_and_all_is_committed() -> None:
    one = Worker("w1", {})
    other = Worker("w2", {})
    async with serving(one, other) as machine:
        machine.is_committed.clear()
        machine.tell(trees(A), {})
        assert sent(machine.workers) == [trees(A)] * 2
        one.states = trees(A)
        await machine.looks_again()
        other.states = trees(A, epoch="e0 n0")
        await machine.looks_again()
        assert machine.waits == [], "the other has reserved again for an earlier server"
        other.states = trees(A)
        other.place = (2, 7)
        await eventually(lambda: machine.waits)
        assert machine.waits == [{"w1": (1, 100), "w2": (2, 7)}]
        assert machine.confirmed == {}
        machine.is_committed.set()
        await eventually(lambda: machine.confirmed == trees(A))
        assert machine.news == 1


async def test_a_worker_that_dies_has_no_say() -> None:
    """The journal is committed whole: the wait has no place for it."""
    async with serving(Worker("w1", trees(A)), Worker("w2")) as machine:
        machine.tell(trees(A), {})
        await machine.looks_again()
        assert machine.waits == [], "it does not answer, and lives"
        machine.workers[1].dies()
        await eventually(lambda: machine.confirmed == trees(A))
        assert machine.waits == [{"w1": (1, 100)}]


async def test_without_a_worker_all_journals_are_waited_for() -> None:
    async with serving(Worker("")) as machine:
        machine.tell(trees(A), {})
        await eventually(lambda: machine.confirmed == trees(A))
        assert machine.waits == [{}]


async def test_a_worker_that_starts_is_waited_for_and_told_once_control_knows_it() -> None:
    async with serving(Worker("w1", trees(A)), Worker("")) as machine:
        late = machine.workers[1]
        late.starts("w2")
        machine.rebuilds.tell(["w1"], trees(A), {})
        assert late.messages == [], "control may end what it reserves"
        await machine.looks_again()
        assert machine.waits == []
        machine.tell(trees(A), {})
        assert sent([late]) == [trees(A)]
        late.dies()
        await eventually(lambda: machine.confirmed == trees(A))


async def test_a_worker_is_told_again_what_was_sent_before_its_channel_was_open() -> None:
    async with serving(Worker("w1", {})) as machine:
        machine.tell({}, {})
        machine.rebuilds.started("w1")
        machine.tell({}, {})
        machine.tell({}, {})
        assert len(machine.workers[0].messages) == 2


async def test_one_tree_waits_for_no_other() -> None:
    worker = Worker("w1", trees(B))
    async with serving(worker) as machine:
        machine.tell(trees(A, B), {})
        await eventually(lambda: machine.confirmed == trees(B))
        worker.states = trees(A, B)
        await eventually(lambda: machine.confirmed == trees(A, B))


async def test_another_epoch_in_the_middle_is_confirmed_alone() -> None:
    worker = Worker("w1", trees(A))
    async with serving(worker) as machine:
        machine.is_committed.clear()
        machine.tell(trees(A), {})
        await eventually(lambda: machine.waits)
        machine.tell(trees(A, epoch="e2 n2"), {})
        machine.is_committed.set()
        await machine.looks_again()
        assert machine.confirmed == {}, "what was rebuilt for the first server is no answer to the second"
        worker.states = trees(A, epoch="e2 n2")
        await eventually(lambda: machine.confirmed == trees(A, epoch="e2 n2"))


async def test_a_tree_that_waits_again_is_rebuilt_again() -> None:
    """The same server has lost its data: the state has another nonce."""
    worker = Worker("w1", trees(A))
    async with serving(worker) as machine:
        machine.tell(trees(A), {})
        await eventually(lambda: machine.confirmed == trees(A))
        machine.tell(trees(A, epoch="e1 n2"), {})
        await machine.looks_again()
        assert machine.confirmed == trees(A)
        worker.states = trees(A, epoch="e1 n2")
        await eventually(lambda: machine.confirmed == trees(A, epoch="e1 n2"))


async def test_workers_are_told_of_a_confirmed_tree_once_more() -> None:
    worker = Worker("w1", trees(A))
    async with serving(worker) as machine:
        machine.tell(trees(A), {})
        await eventually(lambda: machine.confirmed == trees(A))
        machine.tell({}, trees(A))
        assert machine.confirmed == {}
        assert sent([worker]) == [trees(A)]
        machine.tell({}, {})
        assert sent([worker]) == [{}]


async def test_a_confirmation_that_comes_while_a_report_is_under_way_stays() -> None:
    worker = Worker("w1", trees(A))
    async with serving(worker) as machine:
        machine.tell(trees(A), {})
        await eventually(lambda: machine.confirmed == trees(A))
        machine.tell(trees(A), {})  # the answer to a report that was sent before
        assert machine.confirmed == trees(A)


async def test_nothing_is_asked_while_nothing_waits() -> None:
    worker = Worker("w1", {})
    async with serving(worker) as machine:
        machine.tell({}, {})
        await until_still(lambda: worker.flushes)
        assert worker.flushes == 0


async def test_a_worker_that_has_lost_the_end_of_a_call_confirms_nothing_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker("w1", trees(A))
    worker.place = None
    async with serving(worker) as machine:
        machine.tell(trees(A), {})
        await machine.looks_again()
        await machine.looks_again()
        assert machine.waits == []
        assert caplog.text.count("TOLLGATE_JOURNAL_DIR") == 1
        worker.dies()
        await eventually(lambda: machine.confirmed == trees(A))
