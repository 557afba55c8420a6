"""Assigns a replica to every call to a platform model, for all workers of this machine.

Workers ask; `Answers` carries the answers back. Probes report by `probed`, changes of policy by `policy_changed`, dead
workers by `worker_died`. `loads`, `on_load` and `on_ended` tell what happens here. Pure: `Clocks` gives the time, and
`Answers.wake_at` asks for a timer.

See docs/reference/inference.md#replicas.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from policy.deployment_load import DeploymentLoad
from policy.deployments import Deployment
from policy.snapshot import ModelRow
from proxy.errors import PolicyUnavailableError
from proxy.replicas.replica_calls import CallEnded, Wanted
from proxy.replicas.supervisor.circuit_breaker import CallOutcome, State
from proxy.replicas.supervisor.deployment_calls import Choose, DeploymentCalls, less_loaded, suits
from proxy.replicas.supervisor.known_deployments import KnownDeployments
from proxy.replicas.supervisor.platform_call import CallId, PlatformCall, WaitsFor, Why
from proxy.replicas.supervisor.replica_state import ReplicaState

SLICE = 100
"""Number of calls that are assigned, moved and notified at a time. The rest follows when others had their turn."""
PARKED_RETRY_S = 1.0
"""Seconds for which a parked call avoids an unreachable replica. Other calls are refused if there is no other one."""


class Models(Protocol):
    """All models of the policy replica."""

    def get(self, model_id: str) -> ModelRow | None:
        """Raises `PolicyUnavailableError` if there is no policy."""
        ...


class Answers(Protocol):
    """The switchboard's answers to calls. No method may call it back."""

    def assigned(self, id: CallId, url: str) -> None: ...

    def waits(self, id: CallId, what: WaitsFor) -> None:
        """The call waits, or now waits for something else. Another answer follows."""
        ...

    def refused(self, id: CallId, why: Why) -> None: ...

    def wake_at(self, at: float | None) -> None:
        """Call `woke_up` at this time, and at no earlier one that was named before."""
        ...


@dataclass(frozen=True, slots=True)
class Clocks:
    """`now`: monotonic seconds. `wall_ms`: milliseconds since 1970."""

    now: Callable[[], float]
    wall_ms: Callable[[], int]


class Switchboard:
    """All platform calls of this machine.

    `on_load(deployment_id)` is called when its figures in flight, queued or parked leave 0 or return to it, or when the
    health of a replica changes. `on_ended(deployment_id, replica, ended)` is called for each call that ended at a known
    deployment; `replica` is its base URL, or None if it had none. Both may read `loads`.
    """

    def __init__(self, models: Models, answers: Answers, clocks: Clocks, choose: Choose) -> None:
        self._models = models
        self._answers = answers
        self._clocks = clocks
        self._choose = choose
        self._calls: dict[CallId, PlatformCall] = {}
        self._deployments = KnownDeployments()
        self._wakeups: dict[str, float] = {}  # by deployment
        self._wakes_at: float | None = None
        self._slice_room = SLICE
        """Number of calls that may still be dealt with in this slice."""
        self.on_load: Callable[[str], None] = lambda deployment_id: None
        self.on_ended: Callable[[str, str | None, CallEnded], None] = lambda deployment_id, replica, ended: None

    # What workers say.

    def ask(self, id: CallId, request: Wanted, avoid: Set[str] = frozenset()) -> None:
        """A call wants a replica, but none of `avoid`. It may ask again after `unreachable`."""
        self._slice_room = SLICE
        call = self._calls.get(id)
        if call is None:
            call = self._calls[id] = PlatformCall(id, request)
        else:
            call.asked_before = True
            if (before := self._withdraw(call)) is not None:
                self._assign_free(before)
        try:
            match = self.find(request)
        except PolicyUnavailableError:
            self._answers.refused(id, Why.NO_POLICY)
            return
        if match is None:
            self._answers.refused(id, Why.NO_MODEL)
            return
        deployment = self._deployments.seen(*match)
        deployment.last_request_at_ms = self._clocks.wall_ms()
        call.avoid = avoid
        call.avoid_until = self._clocks.now() + PARKED_RETRY_S
        self._join(deployment, call)
        self._assign_free(deployment, (call,))

    def answered(self, id: CallId) -> None:
        """The head of an answer arrived."""
        self._outcome(id, CallOutcome.ANSWERED)

    def reset(self, id: CallId) -> None:
        """The connection broke before the head."""
        self._outcome(id, CallOutcome.FAILED)

    def unreachable(self, id: CallId) -> None:
        """Record that there was no connection. The call has no replica until it asks again."""
        self._outcome(id, CallOutcome.FAILED, gives_back=True)

    def ended(self, id: CallId, ended: CallEnded | None) -> None:
        """The call is over, whether it waited, ran or was refused. None: nothing was sent, and no log tells of it."""
        self._slice_room = SLICE
        call = self._calls.pop(id, None)
        if call is None or call.deployment_id is None:
            return
        replica = call.replica.url if call.replica is not None else None
        deployment = self._withdraw(call)
        if deployment is not None:
            self._assign_free(deployment)
        if ended is not None:
            self.on_ended(call.deployment_id, replica, ended)

    def worker_died(self, slot: int) -> None:
        """End all calls of this worker. Call it before another worker in the slot asks."""
        self._slice_room = SLICE
        dead = [call for call in self._calls.values() if call.id[0] == slot]
        touched = []
        for call in dead:
            del self._calls[call.id]
            touched.append(self._withdraw(call))
        for deployment in dict.fromkeys(touched):
            if deployment is not None:
                self._assign_free(deployment)

    # What policy, probes and the clock say.

    def find(self, request: Wanted) -> tuple[ModelRow, Deployment] | None:
        """The deployment that a call names. Raises `PolicyUnavailableError`."""
        model = self._models.get(request.model_id)
        if model is None or model.workspace_id != request.workspace_id:
            return None
        deployment = model.deployment_at(request.where)
        return None if deployment is None else (model, deployment)

    def policy_changed(self, model_ids: Iterable[str]) -> None:
        """Follow a change of these models in the policy replica. Waiting calls follow their environments."""
        self._slice_room = SLICE
        for model_id in model_ids:
            for deployment in self._deployments.follow(model_id, self._models.get(model_id)):
                self._catch_up(deployment)

    def probed(self, deployment_id: str, url: str, healthy: bool) -> None:
        """Record the verdict of this machine's probes about a replica: the first one, and each change of it.

        Replicas that are not listed, or whose deployment has no health check, are ignored.
        """
        deployment = self._deployments.get(deployment_id)
        replica = deployment.replicas.get(url) if deployment is not None else None
        if deployment is None or replica is None or deployment.policy.health is None or not replica.listed:
            return
        if replica.probed_good is not healthy:
            self._slice_room = SLICE
            replica.probed_good = healthy
            deployment.health_changed()
            self._assign_free(deployment)

    def woke_up(self) -> None:
        """The time that `wake_at` named has come: breakers allow a trial, parked calls try their replica again."""
        now = self._clocks.now()
        self._slice_room = SLICE
        for id in [id for id, at in self._wakeups.items() if at <= now]:
            if self._slice_room <= 0:
                break
            self._slice_room -= 1
            if (deployment := self._deployments.get(id)) is not None:
                self._catch_up(deployment)
        self._wakes_at = None
        self._announce_wakeup()

    def loads(self) -> list[DeploymentLoad]:
        """Return this machine's load of each deployment that has a health check or was called."""
        now = self._clocks.now()
        return [deployment.load(now) for deployment in self._deployments]

    def load_of(self, deployment_id: str) -> DeploymentLoad | None:
        """The same for one deployment. None if it is not known here."""
        deployment = self._deployments.get(deployment_id)
        return deployment.load(self._clocks.now()) if deployment is not None else None

    def workspace_of(self, deployment_id: str) -> str | None:
        """Return the workspace of a deployment. None if the deployment is not known here."""
        deployment = self._deployments.get(deployment_id)
        return deployment.workspace_id if deployment is not None else None

    def deployment_ids(self) -> list[str]:
        """All deployments that `loads` tells of."""
        return [deployment.policy.id for deployment in self._deployments]

    # How calls move.

    def _catch_up(self, deployment: DeploymentCalls) -> None:
        for following, newcomers in self._follow_environments(deployment).items():
            self._assign_free(following, newcomers)
        self._assign_free(deployment)

    def _follow_environments(self, deployment: DeploymentCalls) -> Mapping[DeploymentCalls, list[PlatformCall]]:
        """Move waiting calls to the deployment that they name now; return them by the deployment that they joined."""
        joined: dict[DeploymentCalls, list[PlatformCall]] = {}
        for call in self._slice_of(deployment.to_follow, deployment):
            match = self.find(call.request)
            if match is not None and match[1].id == deployment.policy.id:
                continue
            self._withdraw(call)
            if match is None:
                self._answers.refused(call.id, Why.NO_MODEL)
            else:
                following = self._deployments.seen(*match)
                self._join(following, call)
                joined.setdefault(following, []).append(call)
        return joined

    def _slice_of(self, calls: deque[PlatformCall], deployment: DeploymentCalls) -> Iterator[PlatformCall]:
        """Take the next of these calls that still wait there, as many as this slice allows."""
        while calls and self._slice_room > 0:
            self._slice_room -= 1
            if (call := calls.popleft()) in deployment.waiting_calls:
                yield call

    def _join(self, deployment: DeploymentCalls, call: PlatformCall) -> None:
        call.deployment_id = deployment.policy.id
        deployment.waiting_calls.join(call)
        if call.avoid:
            deployment.avoids(call)

    def _withdraw(self, call: PlatformCall) -> DeploymentCalls | None:
        """Take the call out of its queue, or from its replica. The caller settles the deployment."""
        deployment = self._deployments.get(call.deployment_id)
        if deployment is None:
            return None
        if call.replica is not None:
            self._release(deployment, call, call.replica)
        elif call.waits_for is not None:
            self._leave(deployment, call)
        return deployment

    def _leave(self, deployment: DeploymentCalls, call: PlatformCall) -> None:
        deployment.waiting_calls.leave(call)
        deployment.no_longer_waits(call)

    def _release(self, deployment: DeploymentCalls, call: PlatformCall, replica: ReplicaState) -> None:
        call.replica = None
        if not call.outcome_known:
            self._record(deployment, replica, CallOutcome.ABANDONED)
        replica.in_flight -= 1
        deployment.in_flight -= 1
        deployment.forget_if_gone(replica)

    def _outcome(self, id: CallId, event: CallOutcome, *, gives_back: bool = False) -> None:
        self._slice_room = SLICE
        call = self._calls.get(id)
        deployment = self._deployments.get(call.deployment_id) if call is not None else None
        if call is None or call.replica is None or deployment is None:
            return
        changed = self._record(deployment, call.replica, event)
        call.outcome_known = True
        if gives_back:
            self._release(deployment, call, call.replica)
        if gives_back or changed:
            self._assign_free(deployment)

    def _record(self, deployment: DeploymentCalls, replica: ReplicaState, event: CallOutcome) -> bool:
        """Record how a call went. Returns whether the breaker's state has changed."""
        before = replica.breaker.state
        replica.breaker.record(event, self._clocks.now())
        if replica.breaker.state is before:
            return False
        deployment.health_changed()
        return True

    def _assign_free(self, deployment: DeploymentCalls, newcomers: Iterable[PlatformCall] = ()) -> None:
        """Give out what is free, tell those who still wait where they stand, and report what changed."""
        now = self._clocks.now()
        untold = [*newcomers, *deployment.take_forgiving(now, max(0, self._slice_room))]
        while (
            deployment.waiting_calls and self._slice_room > 0 and (room := deployment.with_room(deployment.usable(now)))
        ):
            self._slice_room -= 1
            call = deployment.waiting_calls.pop(partial(suits, replicas=room))
            if call is None:
                break
            deployment.no_longer_waits(call)
            if call.avoid:
                room = [one for one in room if one.url not in call.avoid]
            self._assign(deployment, call, less_loaded(room, self._choose))
        if deployment.waiting_calls:
            self._tell_waiting(deployment, deployment.usable(now), untold)
        else:
            deployment.to_follow.clear()
            deployment.to_tell.clear()
        more = deployment.to_follow or deployment.to_tell or self._slice_room <= 0
        deployment.unfinished = bool(deployment.waiting_calls and more)
        self._report(deployment, now)

    def _assign(self, deployment: DeploymentCalls, call: PlatformCall, replica: ReplicaState) -> None:
        if replica.breaker.state is not State.CLOSED:
            deployment.trial_begins(replica)
        replica.breaker.begin()
        replica.in_flight += 1
        deployment.in_flight += 1
        call.replica = replica
        call.outcome_known = False
        self._answers.assigned(call.id, replica.url)

    def _tell_waiting(
        self, deployment: DeploymentCalls, usable: list[ReplicaState], untold: list[PlatformCall]
    ) -> None:
        """Tell calls what they wait for. All are looked at only when the deployment's standing has changed."""
        standing = deployment.standing_with(usable)
        urls = tuple(replica.url for replica in usable)
        changed = standing is not deployment.standing
        deployment.standing = standing
        others = urls != deployment.usable_then
        deployment.usable_then = urls
        retrying = deployment.retrying.values() if others else ()
        for call in (*retrying, *untold):
            if call in deployment.waiting_calls:
                self._tell(deployment, call, usable)
        if changed:
            deployment.to_tell = deque(deployment.waiting_calls)
        for call in self._slice_of(deployment.to_tell, deployment):
            self._tell(deployment, call, usable)

    def _tell(self, deployment: DeploymentCalls, call: PlatformCall, usable: list[ReplicaState]) -> None:
        prospects = deployment.prospects(call, usable)
        if isinstance(prospects, Why):
            self._refuse(deployment, call, prospects)
            return
        if prospects is WaitsFor.REPLICA:
            deployment.parked(call)
        elif not (call.waits_for or call.asked_before or call.was_parked or call.request.background):
            shed = deployment.first_to_shed(call, usable)
            if shed is not None:
                self._refuse(deployment, shed, Why.FULL)
            if shed is call:
                return
        if prospects is not call.waits_for:
            if call.waits_for is not None:
                deployment.counts[call.waits_for] -= 1
            call.waits_for = prospects
            deployment.counts[prospects] += 1
            self._answers.waits(call.id, prospects)

    def _refuse(self, deployment: DeploymentCalls, call: PlatformCall, why: Why) -> None:
        self._leave(deployment, call)
        self._answers.refused(call.id, why)

    def _report(self, deployment: DeploymentCalls, now: float) -> None:
        id = deployment.policy.id
        self._plan_wakeup(id, deployment.wakeup_after(now))
        if deployment.deleted and deployment.idle:
            self._deployments.forget(deployment)
            self._plan_wakeup(id, None)
        in_flight = deployment.in_flight > 0
        counts = [count > 0 for count in deployment.counts.values()]
        report = (in_flight, *counts, deployment.health(now).urls)
        if report != deployment.reported:
            deployment.reported = report
            self.on_load(id)

    def _plan_wakeup(self, id: str, at: float | None) -> None:
        if at == self._wakeups.get(id):
            return
        if at is None:
            del self._wakeups[id]
        else:
            self._wakeups[id] = at
        self._announce_wakeup()

    def _announce_wakeup(self) -> None:
        at = min(self._wakeups.values(), default=None)
        if at != self._wakes_at:
            self._wakes_at = at
            self._answers.wake_at(at)
