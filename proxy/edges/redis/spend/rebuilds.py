"""Puts the reservations of calls in flight again where Redis may have lost them, and tells which trees have all.

See docs/reference/money.md#how-spend-is-counted.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from policy.spend.spend_hash import Reserved
from proxy.accounting.spend_taken import SpendTaken
from proxy.edges.redis.nodes.redis_node import RedisNode, RedisNodes
from proxy.edges.redis.spend.end_sender import EndSender
from proxy.edges.redis.spend.scripts import Arguments, reservation_arguments
from runtime.background import cancelled
from runtime.redis.slots import slot_of

PUTS = 2
_AGAIN_S = 0.25
_CONFIRMED_S = 0.02
"""The pause while reservations are on their way."""


class _WaitingTree:
    """A tree that waits. `value`: begins with its epoch.

    `destination`: the node, and its connection, to which reservations were put. `puts`: how often. `is_confirmed`:
    tells if it has them.
    """

    __slots__ = ("destination", "epoch", "is_confirmed", "key", "puts", "slot", "value")

    def __init__(self, key: str, value: str) -> None:
        self.key = key
        self.value = value
        self.epoch = value.split(" ", 1)[0]
        self.slot = slot_of(key.encode())
        self.destination: tuple[RedisNode, int] | None = None
        self.puts = 0
        self.is_confirmed: Callable[[], bool] = lambda: False


class Rebuilds:
    """The rebuilds of one worker's reservations.

    `open`: what calls in flight have reserved, by event key. `rebuilt`: by tree, the value of the last `start` whose
    server has all of them. `present_epochs`: by tree, the epoch from which replies are believed since. `puts`: how
    often reservations of a tree were put.
    """

    def __init__(self, nodes: RedisNodes, ends: EndSender, incarnation: str, open: Mapping[str, SpendTaken]) -> None:
        self._nodes = nodes
        self._ends = ends
        self._incarnation = incarnation
        self._open = open
        self._trees: dict[str, _WaitingTree] = {}
        self._task: asyncio.Task[None] | None = None
        self.rebuilt: dict[str, str] = {}
        self.present_epochs: dict[str, str] = {}
        self.puts = 0

    def start(self, epochs: Mapping[str, str]) -> None:
        """Put again what these trees need. `epochs`: by the key of a tree's hash, the epoch, and maybe more words:
        another text than before asks again."""
        self.rebuilt = {key: value for key, value in self.rebuilt.items() if epochs.get(key) == value}
        present = self._trees
        self._trees = {}
        for key, value in epochs.items():
            tree = present.get(key)
            if key not in self.rebuilt:
                self._trees[key] = tree if tree is not None and tree.value == value else _WaitingTree(key, value)
        if self._trees and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            await cancelled(self._task)

    async def _run(self) -> None:
        while self._trees:
            await self._advance()
            is_put = any(tree.destination == _destination(self._nodes.of(tree.slot)) for tree in self._trees.values())
            if self._trees:
                await asyncio.sleep(_CONFIRMED_S if is_put else _AGAIN_S)

    async def _advance(self) -> None:
        """Ask the servers of all trees for their epochs, then do what each tree needs.

        A tree is rebuilt if the server that has confirmed its reservations says afterwards, on the same connection,
        that it is in the epoch. No epoch comes back, so it was in it all the time. All are put twice: the replies to
        calls that it admitted before it lost them, in the same epoch, come before the first confirmation.
        """
        trees = list(self._trees.values())
        confirmed = {tree.key for tree in trees if tree.is_confirmed()}
        nodes = {tree.key: self._nodes.of(tree.slot) for tree in trees}
        await asyncio.gather(*map(_read_epoch, set(nodes.values())))
        for tree in trees:
            node = nodes[tree.key]
            if node.epoch.text != tree.epoch or self._trees.get(tree.key) is not tree:
                continue
            if tree.destination != _destination(node):
                tree.puts = 0
                self._put(tree, node)
            elif tree.key in confirmed and tree.puts < PUTS:
                self._put(tree, node)
            elif tree.key in confirmed:
                del self._trees[tree.key]
                self.rebuilt[tree.key] = tree.value

    def _put(self, tree: _WaitingTree, node: RedisNode) -> None:
        tree.destination = _destination(node)
        tree.puts += 1
        self.present_epochs[tree.key] = tree.epoch
        self.puts += 1
        calls = [take for take in self._open.values() if take.plan.key == tree.key]
        tree.is_confirmed = self._ends.put(tree.key, [self._arguments(take) for take in calls])

    def _arguments(self, take: SpendTaken) -> Arguments:
        reserved = Reserved(take.picos, self._incarnation, take.plan.groups)
        return reservation_arguments(take.event_key, reserved)


def _destination(node: RedisNode) -> tuple[RedisNode, int]:
    return node, node.client.connections


async def _read_epoch(node: RedisNode) -> None:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answered() -> None:
        if not answer.done():
            answer.set_result(None)

    node.epoch.read(answered)
    await answer
