"""Leases of running attempts are renewed; attempts whose lease cannot be renewed are given up in time."""

import asyncio
from collections.abc import Collection

from proxy.async_requests.queues import HELD_S, LEASE_S, QueueUnavailableError
from proxy.async_worker.leases import Leases


class Renewals:
    """A queue that only renews. `now`: seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.renewals: list[list[str]] = []
        self.losses: list[str] = []
        self.unavailable = False
        self.hangs = False
        self.leases: Leases[str] = Leases(self.renew, lambda: self.now)
        self.given_up: list[str] = []

    async def renew(self, request_ids: Collection[str]) -> Collection[str]:
        self.renewals.append(list(request_ids))
        if self.hangs:
            await asyncio.Event().wait()
        if self.unavailable:
            raise QueueUnavailableError
        return self.losses

    def hold(self, *names: str) -> None:
        for name in names:
            self.leases.hold(name, self.now, lambda name=name: self.given_up.append(name))  # type: ignore[misc]  # a default binds the loop's value


async def test_all_that_is_held_is_renewed_at_once_and_what_is_lost_is_told() -> None:
    queue = Renewals()
    assert await queue.leases.renew()
    assert queue.renewals == [], "nothing is held"
    queue.hold("a", "b", "c")
    queue.leases.release("c")
    queue.losses = ["b"]
    assert await queue.leases.renew()
    assert await queue.leases.renew()
    assert queue.renewals == [["a", "b"], ["a"]]
    assert queue.given_up == ["b"]


async def test_what_cannot_be_renewed_is_given_up_before_another_process_may_take_it() -> None:
    assert HELD_S < LEASE_S
    queue = Renewals()
    queue.hold("a")
    queue.now += 3
    await queue.leases.renew()
    queue.unavailable = True
    queue.now += HELD_S - 1
    queue.hold("later")
    assert not await queue.leases.renew()
    assert queue.given_up == []
    queue.now += 1
    assert not await queue.leases.renew()
    assert queue.given_up == ["a"]


async def test_a_queue_that_hangs_counts_as_one_that_does_not_answer() -> None:
    queue = Renewals()
    queue.hold("a")
    queue.hangs = True
    queue.now += HELD_S
    assert not await asyncio.wait_for(queue.leases.renew(), 20)
    assert queue.given_up == ["a"]
