"""Details of events on their way to each kind of receiver: the figures, never a cost, in the same bytes each time."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from commands.edges.forwarding.event_files import JsonlFile
from commands.edges.forwarding.forwarder_state import StateError, opened
from commands.edges.forwarding.parquet_parts import ParquetParts
from commands.forward.cloud_events import metered
from commands.forward.receivers import Destination
from commands.forward.stripe_meters import FIGURES, StripeReceiver, read_meter
from commands.records.billing_events import read_event
from commands.records.receiver import Answer
from tests.commands.forward.scene import START, Scene
from tests.fakes.listed_events import DETAILS, ListedEvents, listed_event

FLAGS = {
    **{"batch": None, "receiver_url": None, "output": None, "source": "acme", "event_type": "usage", "details": False},
    **{"meters": (), "customer": "{external_entity_id}", "customers": None},
}
SK = {"STRIPE_API_KEY": "sk_test"}


def destination(kind: str, **flags: Any) -> Destination:
    return Destination.of({**FLAGS, "kind": kind, **flags}, SK)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_lines_have_details_and_no_cost(tmp_path: Path) -> None:
    client = ListedEvents([listed_event(n) for n in range(9)])
    scene = Scene(tmp_path, client, lambda: JsonlFile(tmp_path / "events", 3), details=True)
    assert await scene.run_dying_everywhere() > 3
    assert lines(tmp_path / "events") == [{"details": DETAILS} | event for event in client.events]


async def test_lines_have_no_details_unless_they_are_wanted(tmp_path: Path) -> None:
    client = ListedEvents([listed_event(n) for n in range(3)])
    await Scene(tmp_path, client, lambda: JsonlFile(tmp_path / "events", 3)).run()
    assert lines(tmp_path / "events") == client.events


async def test_a_window_that_replaces_a_refused_cursor_has_details(tmp_path: Path) -> None:
    client = ListedEvents([listed_event(n) for n in range(9)], refuses_cursors=True)
    await Scene(tmp_path, client, lambda: JsonlFile(tmp_path / "events", 3), details=True).run()
    assert [line["details"] for line in lines(tmp_path / "events")] == [DETAILS] * 9


async def test_parquet_parts_have_a_column_for_each_member(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    old = listed_event(1) | {"details": DETAILS | {"status": None, "source": None, "serviceTier": None}}
    client = ListedEvents([listed_event(0), old])
    await Scene(tmp_path, client, lambda: ParquetParts(tmp_path / "parts", 9, details=True), details=True).run()
    (path,) = (tmp_path / "parts").iterdir()
    new, before = parquet.read_table(path).to_pylist()
    assert (new["status"], new["cache_write_1h_tokens"], new["service_tier"]) == (200, 3, "flex")
    assert (before["status"], before["source"], before["reasoning_tokens"]) == (None, None, 7)


def test_openmeter_has_them_as_flat_members() -> None:
    plain = metered(read_event(listed_event(0)))
    detailed = metered(read_event(listed_event(0) | {"details": DETAILS}))
    assert {name: detailed[name] for name in plain} == plain
    assert (detailed["reasoning_tokens"], detailed["service_tier"]) == (7, "flex")


class Stripe:
    """Takes every form."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}

    async def post(self, path: str, body: bytes, content_type: str) -> Answer:
        form = dict(parse_qsl(body.decode()))
        self.sums[form["event_name"]] = self.sums.get(form["event_name"], 0) + int(form["payload[value]"])
        return Answer(200)

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("cache_write", 5),
        ("cache_write_1h", 3),
        ("reasoning", 7),
        ("server_tool_calls", 2),
        ("audio_input", 0),
        ("audio_output", 0),
        ("image_input", 0),
        ("image_output", 0),
    ],
)
async def test_stripe_meters_can_sum_each_figure(tmp_path: Path, figure: str, value: int) -> None:
    target = destination("stripe", meters=(f"m={figure}",))
    assert target.details
    stripe = Stripe()
    client = ListedEvents([listed_event(n) for n in range(3)])
    scene = Scene(tmp_path, client, lambda: StripeReceiver(stripe, target.meters, str, 5), details=target.details)
    await scene.run()
    assert stripe.sums.get("m", 0) == 3 * value


def test_stripe_reads_no_details_for_meters_that_sum_none() -> None:
    assert not destination("stripe", meters=("m=output", "n=calls")).details
    assert {read_meter(f"m={figure}").figure for figure in FIGURES} == set(FIGURES)


@pytest.mark.parametrize("flags", [{"kind": "jsonl", "output": Path("x")}, {"kind": "openmeter"}])
def test_a_state_is_for_events_with_details_or_for_those_without(tmp_path: Path, flags: dict[str, Any]) -> None:
    plain = destination(**flags).purpose()
    detailed = destination(**flags, details=True).purpose()
    of_before = {name: value for name, value in plain.items() if name != "details"}
    for number, (begun, other) in enumerate(((detailed, plain), (plain, detailed), (of_before, detailed))):
        state = tmp_path / str(number)
        with opened(state, begun, START):
            pass
        with pytest.raises(StateError, match="state of its own"), opened(state, other, None):
            pass
    with opened(tmp_path / "2", plain, None):
        pass
