"""Probes every replica of every deployment that has a health check: `GET {replica}{path}`, whether it is called or not.

A task per replica, so a probe that hangs delays no other. Follows the policy replica: probes of a replica that leaves
the list stop at once. `replica_health.py` counts the probes; the switchboard and the reports to control get the result.

See docs/reference/inference.md#health-checks.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from policy.deployments import NOT_SERVING, Deployment, HealthCheck
from policy.hosts import Reach
from proxy.edges.policy.supervisor.model_rows import ModelChange
from proxy.edges.replicas.supervisor.probe_lanes import ProbeLane, ProbeLanes
from proxy.errors import UpstreamError, UpstreamTimeoutError, UpstreamUnreachableError
from proxy.parts import UpstreamClient
from proxy.records.messages import UpstreamCall
from proxy.records.request_fields import RequestFields
from proxy.replicas.supervisor.replica_health import Probe, ReplicaHealth
from runtime.exhaustion import Exhaustion, is_exhausted

HURRIED_GAP_S = 0.05
"""Time between two probes of a replica that is not healthy while calls are parked for its deployment."""
HURRIED_PER_S = 320
"""Most such probes per second for one deployment. With more than 16 such replicas, the gap grows."""
SLOW_S = 0.5
"""A replica whose last probe took longer is slow."""
MAX_BODY_BYTES = 65_536
"""The bytes of an answer's body that are read; a longer one is cut off there."""
REMEDY = "Check the replica, and the deployment's `health`."
_HEADERS = RequestFields({"user-agent": "tollgate-health-check", "accept": "*/*"})
log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """The outcome of a probe: the label of `tollgate_replica_probes_total`."""

    GOOD = "good"
    STATUS = "status"
    """An answer without a 2xx."""
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    """No connection, or an address that may not be dialled."""
    BROKEN = "broken"
    """The connection broke, or what arrived was not HTTP."""


OnHealth = Callable[[str, str, bool], None]
"""Takes a deployment's id, a replica's base URL and whether it is healthy, first when probes have decided."""


@dataclass(slots=True, eq=False)
class _Watched:
    """A deployment whose replicas are probed. `probed`: by base URL, in the order of the list."""

    id: str
    check: HealthCheck | None = None
    probed: dict[str, "_Probed"] = field(default_factory=dict)

    @property
    def unready(self) -> int:
        return sum(not probed.health.healthy for probed in self.probed.values())


@dataclass(slots=True, eq=False)
class _Probed:
    """A replica that is probed."""

    url: str
    health: ReplicaHealth
    is_new: bool = True
    """True until the first probe."""
    slow: bool = False
    in_exchange: bool = False
    """True while a probe is under way."""
    task: asyncio.Task[None] | None = None


class Prober:
    """Probes replicas. Give it changes of models; read `outcomes` for metrics. Calls `on_health` on the event loop."""

    def __init__(self, client: UpstreamClient, on_health: OnHealth, lanes: ProbeLanes | None = None) -> None:
        self._client = client
        self._on_health = on_health
        self._lanes = lanes or ProbeLanes()
        self._watched: dict[str, _Watched] = {}
        self._hurried: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._exhaustion = Exhaustion("probes of replicas were not sent; the replicas stay what they were")
        self.outcomes: Counter[str] = Counter()

    def models_changed(self, changes: Sequence[ModelChange]) -> None:
        """Start, change and stop probes as these models want it."""
        for change in changes:
            before = change.before.deployments if change.before else {}
            after = change.after.deployments if change.after else {}
            for id in before.keys() | after.keys():
                if before.get(id) is not after.get(id):
                    self._follow(id, after.get(id))

    def hurry(self, deployment_id: str, parked: bool) -> None:
        """Probe this deployment's unhealthy replicas more often while calls are parked for it."""
        if not parked:
            self._hurried.discard(deployment_id)
        elif deployment_id not in self._hurried:
            self._hurried.add(deployment_id)
            watched = self._watched.get(deployment_id)
            for probed in [*watched.probed.values()] if watched else []:
                if watched and not probed.health.healthy and not probed.in_exchange:
                    self._start(watched, probed)

    async def aclose(self) -> None:
        tasks = list(self._tasks)
        self._watched.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- which replicas are probed ------------------------------------------------------------------------------------

    def _follow(self, id: str, deployment: Deployment | None) -> None:
        serves = deployment is not None and deployment.status not in NOT_SERVING
        check = deployment.health if deployment is not None and serves else None
        watched = self._watched.pop(id, None) or _Watched(id)
        probed_before = watched.probed
        watched.probed = {}
        if deployment is not None and check is not None and deployment.replicas:
            self._watched[id] = watched
            for url in dict.fromkeys(deployment.replicas):
                if url in probed_before and watched.check == check:
                    watched.probed[url] = probed_before.pop(url)
                else:
                    watched.probed[url] = _Probed(url, ReplicaHealth(check))
                    self._start(watched, watched.probed[url])
            watched.check = check
        for url, stopped in probed_before.items():
            _cancel(stopped)
            if not serves:  # when it serves again, nothing is known of this replica
                self._on_health(id, url, False)

    def _start(self, watched: _Watched, probed: _Probed) -> None:
        """Probe the replica from now on. Cancels a probe that waits or is under way."""
        _cancel(probed)
        task = probed.task = asyncio.create_task(self._probe_for_ever(watched, probed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- one replica --------------------------------------------------------------------------------------------------

    async def _probe_for_ever(self, watched: _Watched, probed: _Probed) -> None:
        while True:
            took_s = 0.0
            try:
                took_s = await self._probe_once(watched, probed)
            except Exception as error:
                if is_exhausted(error):
                    self._exhaustion.note(error)  # it says nothing of the replica, which stays what it was
                else:
                    log.exception("A replica's probe failed; it is probed again. Please report this bug.")
            await asyncio.sleep(max(0.0, self._gap_s(watched, probed) - took_s))

    async def _probe_once(self, watched: _Watched, probed: _Probed) -> float:
        """Wait until a probe may start, send it and record its outcome. Returns how long it took."""
        loop = asyncio.get_running_loop()
        async with self._lane(watched, probed):
            started_s = loop.time()
            outcome, text = await self._probe(probed)
        took_s = loop.time() - started_s
        probed.slow = took_s > SLOW_S
        self.outcomes[outcome] += 1
        self._record(watched, probed, Probe.GOOD if outcome is Outcome.GOOD else Probe.BAD, text)
        return took_s

    def _record(self, watched: _Watched, probed: _Probed, probe: Probe, text: str) -> None:
        health = probed.health
        was_healthy = health.healthy
        if not health.record(probe):
            return
        path = health.check.path.partition("?")[0]
        which = f"Replica {[*watched.probed].index(probed.url) + 1} of {len(watched.probed)} of deployment {watched.id}"
        if health.healthy:
            log.info("%s is healthy: GET %s %s.", which, path, text)
        else:
            level = logging.WARNING if was_healthy else logging.INFO  # it may still be starting
            log.log(level, "%s gets no calls: GET %s %s. %s", which, path, text, REMEDY)
        self._on_health(watched.id, probed.url, health.healthy)

    async def _probe(self, probed: _Probed) -> tuple[Outcome, str]:
        """Send one probe. Returns how it ended, as a value and in words that name no host."""
        check = probed.health.check
        deadline = time.perf_counter() + check.timeout_s
        url = f"{probed.url}{check.path}"
        call = UpstreamCall(url, "GET", _HEADERS, b"", deadline, check.timeout_s, Reach.REPLICA)
        probed.in_exchange = True
        try:
            status = await self._status(call)
        except UpstreamTimeoutError:
            return Outcome.TIMEOUT, f"was not answered within {check.timeout_s:g} s"
        except UpstreamUnreachableError as error:
            return Outcome.UNREACHABLE, f"could not be sent: {error}"
        except UpstreamError as error:
            return Outcome.BROKEN, f"failed: {error}"
        finally:
            probed.in_exchange = False
        return (Outcome.GOOD if 200 <= status <= 299 else Outcome.STATUS), f"was answered {status}"

    async def _status(self, call: UpstreamCall) -> int:
        """The answer's status. Its body is read too, so that the replica can finish sending. Follows no redirect."""
        answer = await self._client.send(call)
        try:
            remaining_bytes = MAX_BODY_BYTES
            while remaining_bytes > 0 and (piece := await answer.read()):
                remaining_bytes -= len(piece)
        finally:
            answer.close()
        return answer.status

    def _lane(self, watched: _Watched, probed: _Probed) -> ProbeLane:
        if probed.slow:
            return self._lanes.slow
        return self._lanes.hurried if self._is_hurried(watched, probed) else self._lanes.regular

    def _gap_s(self, watched: _Watched, probed: _Probed) -> float:
        """Time from the start of one probe to the start of the next."""
        is_new = probed.is_new
        probed.is_new = False
        interval_s = probed.health.check.interval_s
        if self._is_hurried(watched, probed):
            return min(interval_s, max(HURRIED_GAP_S, watched.unready / HURRIED_PER_S))
        # All machines learn of a replica together: let them probe it at different times.
        part = random.uniform(0.5, 1) if is_new else 1  # noqa: S311 (spreads load, keeps no secret)
        return interval_s * part

    def _is_hurried(self, watched: _Watched, probed: _Probed) -> bool:
        return watched.id in self._hurried and not probed.health.healthy


def _cancel(probed: _Probed) -> None:
    if probed.task is not None:
        probed.task.cancel()
