"""Measures what the nodes that run use, every 15 s. Control gets the latest sample of each node with the next sync.

See docs/reference/training.md#logs-and-metrics.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import time_ns

from policy.training.node_use import NodeSample
from trainer.backend import Backend, BackendAwayError, NodeUse

SAMPLE_S = 15.0
FIRST_SAMPLE_S = 1.0
"""The time from the first look at a node to its first sample: a share of processors needs two looks."""
log = logging.getLogger(__name__)
_Node = tuple[str, int, int]


class NodeSampler:
    """The samples of one trainer's nodes. `clock`: seconds that never go back; `now_ms`: epoch milliseconds."""

    def __init__(
        self,
        backend: Backend,
        clock: Callable[[], float],
        now_ms: Callable[[], int] = lambda: time_ns() // 1_000_000,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._now_ms = now_ms
        self._looks: dict[_Node, tuple[float, int]] = {}
        """The time and the CPU time of the last look at each node."""
        self._pending: dict[_Node, NodeSample] = {}

    async def run(self) -> None:
        """Sample until cancelled. A failure costs samples, nothing else."""
        while True:
            try:
                has_new = await self.sample()
            except BackendAwayError:
                has_new = False  # the sync loop reports the outage
            except Exception:
                has_new = False
                log.exception("The use of nodes could not be measured; trying again. Please report this bug.")
            await asyncio.sleep(FIRST_SAMPLE_S if has_new else SAMPLE_S)

    async def sample(self) -> bool:
        """Look once. Returns whether there is a node that was not there before."""
        uses = {_node(use): use for use in await self._backend.usage()}
        at_s = self._clock()
        now_ms = self._now_ms()
        new_nodes = uses.keys() - self._looks.keys()
        for node, use in uses.items():
            if node not in new_nodes:
                self._pending[node] = _sample(use, self._looks[node], at_s, now_ms)
        self._looks = {node: (at_s, use.cpu_ns) for node, use in uses.items()}
        return bool(new_nodes)

    def pending(self) -> tuple[NodeSample, ...]:
        """Return the samples that control has not got, the latest of each node."""
        return tuple(self._pending.values())

    def delivered(self, samples: Iterable[NodeSample]) -> None:
        for sample in samples:
            node = (sample.job_id, sample.attempt, sample.rank)
            if self._pending.get(node) == sample:
                del self._pending[node]


def _node(use: NodeUse) -> _Node:
    return (use.job_id, use.attempt, use.rank)


def _sample(use: NodeUse, before: tuple[float, int], at_s: float, now_ms: int) -> NodeSample:
    seconds = max(at_s - before[0], 0.001)
    millicores = max(0, round((use.cpu_ns - before[1]) / seconds / 1_000_000))
    return NodeSample(
        job_id=use.job_id,
        attempt=use.attempt,
        rank=use.rank,
        timestamp_ms=now_ms,
        cpu_millicores=millicores,
        memory_bytes=use.memory_bytes,
        storage_bytes=use.storage_bytes,
        storage_total_bytes=use.storage_total_bytes,
    )
