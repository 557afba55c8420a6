"""A machine's report of a deployment: both planes read and write the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.deployment_load import DeploymentLoad

COUNT = st.integers(min_value=0)
URLS = st.lists(st.text()).map(tuple)
LOADS = st.builds(DeploymentLoad, st.text(), st.text(), COUNT, COUNT, COUNT, st.none() | COUNT, URLS, URLS)


@given(LOADS)
def test_what_is_written_is_read_again(load: DeploymentLoad) -> None:
    assert DeploymentLoad.from_wire(json.loads(json.dumps(load.to_wire()))) == load


@given(load=LOADS, name=st.sampled_from(sorted(DeploymentLoad.__dataclass_fields__)), value=st.data())
def test_error_names_the_malformed_member(load: DeploymentLoad, name: str, value: st.DataObject) -> None:
    wrong: st.SearchStrategy[Any] = st.sampled_from([-1, 1.5, True, {}, [None], b"x"])
    with pytest.raises(TypeError, match=name):
        DeploymentLoad.from_wire({**load.to_wire(), "healthy": [], "unhealthy": [], name: value.draw(wrong)})


@pytest.mark.parametrize("figure", ["in_flight", "queued", "parked"])
def test_each_figure_counts_as_calls(figure: str) -> None:
    idle: dict[str, Any] = {"in_flight": 0, "queued": 0, "parked": 0, "last_request_at_ms": 1}
    idle |= {"model_id": "m", "deployment_id": "d", "healthy": (), "unhealthy": ()}
    assert not DeploymentLoad(**idle).has_calls
    assert DeploymentLoad(**{**idle, figure: 1}).has_calls
