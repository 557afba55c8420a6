"""The messages between trainers and control survive JSON, and what is no message is refused by name."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.training.job_spec import JobSpec
from policy.training.reports import Claimed, WantedState, WantedTerminal
from tests.policy.training.messages import MESSAGES

ADDED = {
    "workspace_id": "",
    "project_id": "",
    "project_name": "",
    "job_name": "",
    "checkpoint_max_gib": None,
    "load": None,
    "cache": None,
    "forgotten_caches": (),
    "loads": (),
    "artifacts": (),
    "weights": (),
    "samples": (),
}
"""Members that older versions do not write, and what is read instead."""
KINDS = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
RUBBISH: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 1.5, "1", "rubbish", [], [1], [[]], {}, {"secret": 1}]
)


def places(wire: Any) -> Iterator[list[Any]]:
    """The way to every member, however deep."""
    items = wire.items() if isinstance(wire, dict) else enumerate(wire) if isinstance(wire, list) else ()
    for key, value in items:
        yield [key]
        yield from ([key, *rest] for rest in places(value))


def with_rubbish(wire: Any, place: list[Any], rubbish: Any) -> Any:
    wire = inside = copy.deepcopy(wire)
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = rubbish
    return wire


@KINDS
@settings(max_examples=8)
@given(data=st.data())
def test_a_message_survives_json(kind: Any, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    assert kind.from_wire(json.loads(json.dumps(message.to_wire()))) == message


@KINDS
@settings(max_examples=20)
@given(data=st.data())
def test_rubbish_is_refused_or_understood_but_never_breaks_the_reader(kind: Any, data: st.DataObject) -> None:
    wire = data.draw(MESSAGES[kind]).to_wire()
    place = data.draw(st.sampled_from(list(places(wire))))
    broken = with_rubbish(wire, place, data.draw(RUBBISH))
    try:
        read = kind.from_wire(broken)
    except (KeyError, TypeError, ValueError):
        return
    assert kind.from_wire(json.loads(json.dumps(read.to_wire()))) == read


@KINDS
@settings(max_examples=5)
@given(data=st.data())
def test_a_missing_member_is_named(kind: Any, data: st.DataObject) -> None:
    wire = data.draw(MESSAGES[kind]).to_wire()
    name = data.draw(st.sampled_from([name for name in wire if name not in ADDED]))
    del wire[name]
    with pytest.raises(KeyError, match=name):
        kind.from_wire(wire)


@given(st.one_of(MESSAGES[JobSpec], MESSAGES[Claimed], MESSAGES[WantedState], MESSAGES[WantedTerminal]))
@settings(max_examples=15)
def test_message_of_an_older_version_is_read(message: Any) -> None:
    wire = message.to_wire()
    added = {name: value for name, value in ADDED.items() if name in wire}
    for name in added:
        del wire[name]
    assert type(message).from_wire(wire) == replace(message, **added)


@KINDS
@pytest.mark.parametrize("rubbish", [None, 1, "text", [], [1]], ids=str)
def test_what_is_no_object_is_refused(kind: Any, rubbish: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        kind.from_wire(rubbish)
