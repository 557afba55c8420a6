"""The table of moves: whatever happens to a request, it ends once, and callers never see it go back.

The tests look at every history of up to `MOST_EVENTS` events: of each loop in the table they see several rounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import pytest

from proxy.async_requests.endings import visible_status, visible_webhook_status
from proxy.async_requests.states import OUTCOMES, IllegalMoveError, Phase, RequestEvent, Status, WebhookStatus, after

MOST_EVENTS = 9
FINAL = frozenset(Status) - {Status.QUEUED, Status.IN_PROGRESS}
DECIDING = frozenset((RequestEvent.SUCCEED, RequestEvent.FAIL, RequestEvent.EXPIRE, RequestEvent.CANCEL))
ATTEMPTS = frozenset((Phase.RUNNING, Phase.PAUSED))


@dataclass(frozen=True)
class History:
    """The events of one request. `phases[n]` is the phase before `events[n]`."""

    has_webhook: bool
    phases: tuple[Phase, ...] = (Phase.QUEUED,)
    events: tuple[RequestEvent, ...] = ()

    @property
    def phase(self) -> Phase:
        return self.phases[-1]

    @property
    def seen(self) -> list[tuple[Status, WebhookStatus]]:
        """The statuses that callers have seen, one after another."""
        outcome: Status | None = None
        visible: list[tuple[Status, WebhookStatus]] = []
        for phase, event in zip(self.phases, (None, *self.events), strict=True):
            outcome = OUTCOMES.get(event, outcome) if event is not None else None
            status = visible_status(phase, outcome)
            visible.append((status, visible_webhook_status(self.has_webhook, status)))
        return visible

    def and_then(self, event: RequestEvent) -> "History":
        following = after(self.phase, event, self.has_webhook)
        return History(self.has_webhook, (*self.phases, following), (*self.events, event))

    def longer_by_one(self) -> "Iterator[History]":
        for event in RequestEvent:
            try:
                yield self.and_then(event)
            except IllegalMoveError:
                continue


def histories() -> list[History]:
    all_histories = [History(has_webhook) for has_webhook in (False, True)]
    for history in all_histories:
        if len(history.events) < MOST_EVENTS:
            all_histories += history.longer_by_one()
    return all_histories


ALL = histories()


def test_every_phase_and_every_status_is_reached() -> None:
    for has_webhook in (False, True):
        of_its_kind = [history for history in ALL if history.has_webhook == has_webhook]
        phases = {phase for history in of_its_kind for phase in history.phases}
        statuses = {status for history in of_its_kind for status, _ in history.seen}
        assert phases == set(Phase) - (set() if has_webhook else {Phase.DELIVERING})
        assert statuses == set(Status) - (set() if has_webhook else {Status.WEBHOOK_FAILED})


def test_only_attempts_and_pauses_are_entered_twice() -> None:
    for history in ALL:
        once = [phase for phase in history.phases if phase not in ATTEMPTS]
        assert len(once) == len(set(once)), history
        assert all(before is not following for before, following in pairwise(history.phases)), history


def test_every_request_can_end_within_three_events() -> None:
    for history in ALL:
        near = [history]
        for _ in range(3):
            near += [longer for one in near for longer in one.longer_by_one()]
        assert any(one.phase is Phase.ENDED for one in near), history


def test_end_is_for_ever() -> None:
    for history, event in product(ALL, RequestEvent):
        if history.phase is Phase.ENDED:
            with pytest.raises(IllegalMoveError):
                history.and_then(event)


def test_status_never_goes_back_and_a_final_one_never_changes() -> None:
    ranks = {Status.QUEUED: 0, Status.IN_PROGRESS: 1, **dict.fromkeys(FINAL, 2)}
    for history in ALL:
        statuses = [status for status, _ in history.seen]
        assert [ranks[one] for one in statuses] == sorted(ranks[one] for one in statuses), history
        assert len(FINAL.intersection(statuses)) <= 1, history
        assert (statuses[-1] in FINAL) == (history.phase is Phase.ENDED), history


def test_webhook_is_pending_until_the_end() -> None:
    for history in ALL:
        for status, webhook in history.seen:
            if history.has_webhook:
                assert (webhook is WebhookStatus.PENDING) == (status not in FINAL), history
            else:
                assert webhook is WebhookStatus.NO_WEBHOOK_PROVIDED, history


def test_every_end_but_a_cancel_is_told_to_the_webhook() -> None:
    webhook_statuses = {RequestEvent.DELIVER: WebhookStatus.SUCCEEDED, RequestEvent.GIVE_UP: WebhookStatus.FAILED}
    for history in ALL:
        if history.phase is Phase.ENDED and history.has_webhook:
            _, webhook = history.seen[-1]
            assert webhook is webhook_statuses.get(history.events[-1], WebhookStatus.CANCELED), history
            assert history.events[-1] in (*webhook_statuses, RequestEvent.CANCEL), history


def test_outcome_is_decided_once_and_shown_at_the_end() -> None:
    for history in ALL:
        decided = [event for event in history.events if event in DECIDING]
        if history.phase is Phase.ENDED:
            gave_up = history.events[-1] is RequestEvent.GIVE_UP
            status, _ = history.seen[-1]
            assert len(decided) == 1, history
            assert status is (Status.WEBHOOK_FAILED if gave_up else OUTCOMES[decided[0]]), history
        else:
            assert len(decided) == (history.phase is Phase.DELIVERING), history


def test_only_a_queued_request_is_canceled_or_expires_and_only_a_running_one_succeeds() -> None:
    only_in = {
        RequestEvent.CANCEL: Phase.QUEUED,
        RequestEvent.EXPIRE: Phase.QUEUED,
        RequestEvent.SUCCEED: Phase.RUNNING,
    }
    for history in ALL:
        for phase, event in zip(history.phases, history.events, strict=False):
            assert phase is only_in.get(event, phase), history
