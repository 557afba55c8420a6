"""Checks what Stripe's answers to several customers and meters say together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from commands.edges.forwarding.event_files import LinesFile
from commands.edges.forwarding.forwarder_state import read_progress
from commands.forward.forwarder import RefusedEventError
from commands.forward.stripe_meters import Meter, StripeReceiver
from commands.records.receiver import Answer, ReceiverAwayError
from tests.commands.forward.scene import Scene
from tests.fakes.listed_events import ListedEvents, listed_event

METERS = (Meter("in", "input"), Meter("out", "output"))
REFUSED = Answer(400, b'{"error": {"message": "no such meter"}}')


@dataclass
class Stripe:
    """Answers each form by `answer`; None is no answer."""

    answer: Callable[[Mapping[str, str]], Answer | None]
    forms: list[dict[str, str]] = field(default_factory=list)

    async def post(self, path: str, body: bytes, content_type: str) -> Answer:
        form = dict(parse_qsl(body.decode()))
        self.forms.append(form)
        if (answer := self.answer(form)) is None:
            raise ReceiverAwayError("timed out")
        return answer

    async def close(self) -> None: ...


def scene_of(folder: Path, stripe: Stripe, events: int = 2) -> Scene:
    client = ListedEvents([listed_event(number, entity=f"c{number}") for number in range(events)])
    return Scene(folder, client, lambda: StripeReceiver(stripe, METERS, str, 5), retry_for_s=0.0)


def is_in_doubt(scene: Scene) -> bool:
    return read_progress(scene.state_path)[1].in_doubt_since_s is not None


@pytest.mark.parametrize("status", [401, 429])
async def test_refused_requests_leave_no_event_in_doubt(tmp_path: Path, status: int) -> None:
    """The key may be mended days later: then the events must not look as if they had been sent."""
    scene = scene_of(tmp_path, Stripe(lambda form: Answer(status)))
    with pytest.raises(Exception, match=str(status)):
        await scene.run()
    assert not is_in_doubt(scene)


@pytest.mark.parametrize(("first", "second"), [(429, None), (401, None), (401, 200), (429, 200)])
async def test_one_customer_in_doubt_leaves_the_batch_in_doubt(tmp_path: Path, first: int, second: int | None) -> None:
    answers = {"c0": Answer(first), "c1": None if second is None else Answer(second)}
    scene = scene_of(tmp_path, Stripe(lambda form: answers[form["payload[stripe_customer_id]"]]))
    with pytest.raises(Exception, match="answer"):
        await scene.run()
    assert is_in_doubt(scene)


async def test_dead_letter_names_the_meters_that_refused(tmp_path: Path) -> None:
    stripe = Stripe(lambda form: REFUSED if form["event_name"] == "out" else Answer(200))
    scene = scene_of(tmp_path, stripe, events=1)
    scene.dead_letters = lambda: LinesFile(tmp_path / "dead")
    await scene.run()
    assert '"reason":"out: 400 no such meter"' in (tmp_path / "dead").read_text()


async def test_event_that_one_meter_took_stays_in_doubt(tmp_path: Path) -> None:
    """A second sending, a day later, would be counted twice by that meter."""
    refusing = {"out"}
    stripe = Stripe(lambda form: REFUSED if form["event_name"] in refusing else Answer(200))
    scene = scene_of(tmp_path, stripe)
    with pytest.raises(RefusedEventError, match="out: 400"):
        await scene.run()
    assert is_in_doubt(scene)
    refusing.clear()
    assert (await scene.run()).forwarded == 2
    assert not is_in_doubt(scene)
