"""Checks which jobs are always refused, and which instance types are listed (docs/reference/training.md#jobs)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.errors import InvalidFieldError
from control.records.training import BackendRecord
from control.resources.training.instance_types import gpu_memory_mib, instance_types
from control.resources.training.job_admission import check_fits
from policy.training.job_spec import JobSpec
from policy.training.placement import Candidate, decide, unfit_field
from policy.training.resources import Host, NodeResources

GPU_HOST = Host("g", 8000, 16384, 8, {"H100": 2, "A100": 4}, {"H100": 81920, "A100": 40960})
HOSTS = st.lists(
    st.builds(
        Host,
        name=st.uuids().map(str),
        millicpu=st.integers(0, 4000),
        memory_mib=st.integers(0, 4096),
        max_nodes=st.integers(0, 4),
        gpus=st.dictionaries(st.sampled_from(["H100", "A100"]), st.integers(0, 4)),
    ),
    max_size=4,
)
SIZES = st.builds(NodeResources, st.integers(1, 3000), st.integers(1, 3000)) | st.builds(
    NodeResources, st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3), st.just("H100")
)


@given(HOSTS, st.integers(1, 8), SIZES)
def test_exactly_the_jobs_that_would_start_on_an_empty_backend_are_admitted(
    hosts: list[Host], node_count: int, size: NodeResources
) -> None:
    alone = Candidate("tj_1", False, 0, 0, node_count, size)
    assert (unfit_field(hosts, node_count, size) is None) == ("tj_1" in decide(hosts, [], [alone]).starts)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (NodeResources(9000, 1), "the largest has 8"),
        (NodeResources(1, 20000), "the largest has 16384Mi"),
        (NodeResources(1, 1, 3, "H100"), "accelerators H100; one has 2"),
        (NodeResources(1, 1, 1, "T4"), "accelerators T4; one has 0"),
        (NodeResources(5000, 1), "ask for fewer or smaller nodes"),
    ],
)
def test_a_refusal_says_what_there_is(size: NodeResources, message: str) -> None:
    backend = BackendRecord("t", "local", None, True, (GPU_HOST,), 0)
    with pytest.raises(InvalidFieldError, match=message):
        check_fits(backend, JobSpec((), size, node_count=2))


def test_a_backend_without_machines_admits_nothing() -> None:
    backend = BackendRecord("t", "ray", None, False, (), 0)
    with pytest.raises(InvalidFieldError, match="the largest has 0"):
        check_fits(backend, JobSpec((), NodeResources(1, 1)))


def test_each_kind_of_gpu_of_a_machine_is_an_instance_type() -> None:
    types = instance_types([GPU_HOST, Host("c", 500, 700, 8)])
    assert [(one.id, one.name) for one in types] == [
        ("500m-700Mi", "0.5 CPU, 700 MiB"),
        ("8000m-16384Mi-2xH100", "8 CPU, 16 GiB, 2 H100"),
        ("8000m-16384Mi-4xA100", "8 CPU, 16 GiB, 4 A100"),
    ]


def test_the_memory_of_a_gpu_is_the_least_that_is_known() -> None:
    hosts = [GPU_HOST, Host("h", 1, 1, 1, {"H100": 1}, {"H100": 40960}), Host("i", 1, 1, 1, {"H100": 1})]
    assert gpu_memory_mib(hosts, "H100") == 40960
    assert gpu_memory_mib(hosts, "T4") is None
    assert gpu_memory_mib(hosts, None) is None
