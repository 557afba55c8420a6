"""A trainer tells of caches, and removes some, with a backend and a control in memory."""

import pytest

from policy.training.job_spec import CacheSpec
from tests.contracts.training.backends import claimed, started
from tests.fakes.training_backend import FakeBackend
from tests.fakes.training_control import FakeControl
from trainer.control import ControlAwayError
from trainer.looks.caches import Caches


async def test_summary_waits_while_control_is_away() -> None:
    backend = FakeBackend()
    control = FakeControl(away="gone")
    caches = Caches(backend, control)
    await started(backend, claimed("exit 0", cache=CacheSpec()))
    with pytest.raises(ControlAwayError):
        await caches.look()
    control.away = None
    await caches.look()
    assert list(control.caches) == [""]


async def test_cache_that_a_job_still_uses_holds_up_no_other_removal() -> None:
    backend = FakeBackend()
    control = FakeControl()
    caches = Caches(backend, control)
    await started(backend, claimed("sleep 9", cache=CacheSpec()))
    caches.forget(["", "tp_2"])
    await caches.look()
    await caches.look()
    assert control.removed_caches == ["tp_2"]
    assert backend.calls[1:] == [("forget_cache", "tp_2")]
