"""Looks of the console: calls that its pages make to show something. They count in no figure of calls."""

from dataclasses import dataclass, replace

import pytest

from proxy.parts import Parts
from runtime.http.console_looks import HEADER, look_mark
from tests.fakes.directory import KEY
from tests.fakes.wire import FakeIncoming
from tests.proxy.test_async_requests import AsyncRig, about, asking, few, filled

__all__ = ["few"]
TOKEN = "internal-token-of-the-installation"
QUEUE = "/production/async_queue_status"


@dataclass
class LookedAtRig(AsyncRig):
    """A worker that knows the mark of looks."""

    mark: str = look_mark(TOKEN)

    def parts(self) -> Parts:
        return replace(super().parts(), look_mark=self.mark)


@pytest.fixture
def rig() -> LookedAtRig:
    return filled(LookedAtRig(model_host_suffix="models.test"))  # type: ignore[return-value] # what it was handed


def looks(mark: str, id: str) -> list[FakeIncoming]:
    """Every kind of look, with this mark."""
    slugs = FakeIncoming("/v1/models", "GET", authorization=f"Bearer {KEY}", **{HEADER: mark})
    return [asking(QUEUE, "GET", **{HEADER: mark}), about(id, **{HEADER: mark}), slugs]


async def test_a_look_is_answered_and_counts_nowhere(rig: LookedAtRig) -> None:
    id = await rig.queued()
    rig.meters.calls.clear()
    rig.meters.decisions.clear()
    for incoming in looks(rig.mark, id):
        assert (await rig.serve(incoming)).status == 200
    assert rig.meters.calls == []
    assert rig.meters.decisions == []


@pytest.mark.parametrize("mark", ["", "yes", look_mark("another token"), "ü\udcff", look_mark(TOKEN).upper()])
async def test_nobody_else_can_mark_a_look(rig: LookedAtRig, mark: str) -> None:
    id = await rig.queued()
    rig.meters.calls.clear()
    for incoming in looks(mark, id):
        assert (await rig.serve(incoming)).status == 200
    assert len(rig.meters.calls) == 3


async def test_an_empty_mark_marks_nothing_where_none_is_set() -> None:
    rig = filled(LookedAtRig(mark=""))
    assert (await rig.serve(asking(QUEUE, "GET", **{HEADER: ""}))).status == 200
    assert len(rig.meters.calls) == 1


async def test_looks_take_nothing_of_the_limit_that_customers_share(few: AsyncRig) -> None:
    rig = LookedAtRig(counters=few.counters)
    filled(rig)
    for _ in range(3):
        assert (await rig.serve(asking(QUEUE, "GET", **{HEADER: rig.mark}))).status == 200
    assert (await rig.serve(asking(QUEUE, "GET", **{HEADER: rig.mark}))).status == 429, "looks are limited, too"
    assert [(await rig.serve(asking(QUEUE, "GET"))).status for _ in range(4)] == [200, 200, 200, 429]
