"""Jobs start where a host has room, the most important first; nobody waits for ever."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policy.training.placement import Candidate, Decision, Placed, WaitReason, decide, unfit_field, why_waiting
from policy.training.resources import Host, NodeResources

GPU = "A100"


def host(name: str = "h0", cpu: int = 4, memory: int = 8, nodes: int = 4, gpus: int = 0) -> Host:
    return Host(name, cpu * 1000, memory * 1024, nodes, {GPU: gpus} if gpus else {})


def needs(cpu: int = 1, memory: int = 1, gpus: int = 0) -> NodeResources:
    return NodeResources(cpu * 1000, memory * 1024, gpus, GPU if gpus else None)


def job(id: str, nodes: int = 1, spot: bool = False, priority: int = 0, at: int = 0, **wants: int) -> Candidate:
    return Candidate(id, spot, priority, at, nodes, needs(**wants))


def placed(one: Candidate, *hosts: str, is_ending: bool = False) -> Placed:
    return Placed(one, hosts, is_ending)


clusters = st.lists(
    st.builds(host, cpu=st.integers(1, 8), memory=st.integers(1, 16), nodes=st.integers(1, 4), gpus=st.integers(0, 2)),
    min_size=1,
    max_size=3,
).map(lambda hosts: [replace(one, name=f"h{index}") for index, one in enumerate(hosts)])
candidates = st.lists(
    st.builds(
        job,
        st.just("j"),
        nodes=st.integers(1, 3),
        spot=st.booleans(),
        priority=st.integers(-1, 1),
        at=st.integers(0, 3),
        cpu=st.integers(1, 4),
        memory=st.integers(1, 8),
        gpus=st.integers(0, 1),
    ),
    max_size=7,
).map(lambda jobs: [replace(one, job_id=f"j{index}") for index, one in enumerate(jobs)])


def use(hosts: Sequence[Host], running: Iterable[Placed]) -> Mapping[str, tuple[int, int, int, int]]:
    """Return what each host has free: CPU, memory, nodes, GPUs."""
    free = {one.name: [one.millicpu, one.memory_mib, one.max_nodes, one.gpus.get(GPU, 0)] for one in hosts}
    for one in running:
        wants = one.job.resources
        for name in one.hosts:
            for kind, amount in enumerate((wants.millicpu, wants.memory_mib, 1, wants.gpu_count)):
                free[name][kind] -= amount
    return {name: (cpu, memory, nodes, gpus) for name, (cpu, memory, nodes, gpus) in free.items()}


def started(decision: Decision, queue: Sequence[Candidate]) -> list[Placed]:
    jobs = {one.job_id: one for one in queue}
    return [Placed(jobs[job_id], hosts) for job_id, hosts in decision.starts.items()]


def running_and_waiting(hosts: Sequence[Host], jobs: Sequence[Candidate]) -> tuple[list[Placed], list[Candidate]]:
    """Some of the jobs run where an empty cluster would have put them; the others wait."""
    running = started(decide(hosts, (), jobs[::2]), jobs[::2])
    return running, list(jobs[1::2])


@settings(max_examples=100)
@given(clusters, candidates)
def test_no_host_is_overcommitted(hosts: list[Host], jobs: list[Candidate]) -> None:
    running, queue = running_and_waiting(hosts, jobs)
    starts = started(decide(hosts, running, queue), queue)
    assert all(min(free) >= 0 for free in use(hosts, (*running, *starts)).values())
    assert all(len(one.hosts) == one.job.node_count for one in starts)


@settings(max_examples=100)
@given(clusters, candidates)
def test_a_decision_depends_on_nothing_but_its_arguments_and_not_on_their_order(
    hosts: list[Host], jobs: list[Candidate]
) -> None:
    running, queue = running_and_waiting(hosts, jobs)
    assert decide(hosts, running, queue) == decide(hosts, running[::-1], queue[::-1])


@settings(max_examples=100)
@given(clusters, candidates)
def test_the_first_in_order_starts_if_it_fits(hosts: list[Host], jobs: list[Candidate]) -> None:
    running, queue = running_and_waiting(hosts, jobs)
    assume(queue)
    first = min(queue, key=lambda one: one.order)
    alone = decide(hosts, running, [first])
    together = decide(hosts, running, queue)
    assert (first.job_id in alone.starts) == (first.job_id in together.starts)


@settings(max_examples=100)
@given(clusters, candidates)
def test_only_spot_jobs_are_preempted_and_only_for_a_dedicated_job_that_then_fits(
    hosts: list[Host], jobs: list[Candidate]
) -> None:
    running, queue = running_and_waiting(hosts, jobs)
    decision = decide(hosts, running, queue)
    by_id = {one.job.job_id: one for one in running}
    assert all(by_id[job_id].job.is_spot for job_id in decision.preempted)
    if decision.preempted:
        survivors = [one for one in running if one.job.job_id not in decision.preempted]
        still_waiting = [one for one in queue if one.job_id not in decision.starts]
        after = decide(hosts, [*survivors, *started(decision, queue)], still_waiting)
        helped = [one for one in still_waiting if one.job_id in after.starts]
        assert any(not one.is_spot for one in helped)


@settings(max_examples=60)
@given(clusters, candidates)
def test_every_job_that_can_ever_fit_starts_in_the_end(hosts: list[Host], jobs: list[Candidate]) -> None:
    """Running jobs end in any order, and no further job comes."""
    queue = [one for one in jobs if unfit_field(hosts, one.node_count, one.resources) is None]
    running: list[Placed] = []
    for _ in range(2 * len(jobs) + 1):
        decision = decide(hosts, running, queue)
        running += started(decision, queue)
        queue = [one for one in queue if one.job_id not in decision.starts]
        running = [one for one in running[1:] if one.job.job_id not in decision.preempted]
    assert not queue


@settings(max_examples=100)
@given(clusters, candidates)
def test_a_job_is_unfit_exactly_if_an_empty_cluster_does_not_start_it(hosts: list[Host], jobs: list[Candidate]) -> None:
    for one in jobs:
        is_unfit = unfit_field(hosts, one.node_count, one.resources) is not None
        assert is_unfit == (one.job_id not in decide(hosts, (), [one]).starts)


def test_unfit_field_names_what_no_waiting_mends() -> None:
    hosts = [host(cpu=4, memory=8, nodes=2, gpus=1)]
    assert unfit_field(hosts, 1, needs(cpu=5)) == "cpu_count"
    assert unfit_field(hosts, 1, needs(memory=9)) == "memory"
    assert unfit_field(hosts, 1, needs(gpus=2)) == "accelerator"
    assert unfit_field(hosts, 3, needs()) == "node_count"
    assert unfit_field(hosts, 2, needs(cpu=2, memory=4)) is None
    assert unfit_field([], 1, needs()) == "cpu_count"


def test_one_host_with_the_cpu_and_another_with_the_memory_is_no_host_for_both() -> None:
    hosts = [host("h0", cpu=8, memory=1), host("h1", cpu=1, memory=8)]
    assert unfit_field(hosts, 1, needs(cpu=8, memory=8)) is not None


def test_dedicated_comes_before_spot_then_priority_then_age() -> None:
    order = [job("a", priority=1, at=9), job("b", at=1), job("c", at=2), job("d", spot=True, priority=9)]
    decision = decide([host(cpu=4)], (), order[::-1])
    assert list(decision.starts) == ["a", "b", "c", "d"]


def test_small_jobs_do_not_keep_a_large_one_waiting() -> None:
    hosts = [host(cpu=4)]
    running = [placed(job("running", cpu=2), "h0")]
    queue = [job("large", cpu=4, at=1), job("small", cpu=1, at=2)]
    assert not decide(hosts, running, queue).starts
    assert list(decide(hosts, (), queue).starts) == ["large"]


@pytest.mark.parametrize("endless_on", ["h0", "h1"])
def test_jobs_that_keep_coming_do_not_keep_a_large_one_waiting_wherever_one_never_ends(endless_on: str) -> None:
    hosts = [host("h0", cpu=4), host("h1", cpu=4)]
    other = "h1" if endless_on == "h0" else "h0"
    running = [placed(job("endless"), endless_on), placed(job("s0", cpu=2), other), placed(job("s1", cpu=2), other)]
    for turn in range(4):
        queue = [job("large", cpu=4), *(job(f"small{turn}{index}", cpu=2, at=9 + turn) for index in range(2))]
        decision = decide(hosts, running, queue)
        if "large" in decision.starts:
            return
        running = [running[0], *running[2:], *started(decision, queue)]
    raise AssertionError("the large job waits for ever")


def test_a_job_behind_a_waiting_one_uses_what_that_leaves() -> None:
    hosts = [host("h0", cpu=4), host("h1", cpu=2)]
    running = [placed(job("running", cpu=4), "h0")]
    queue = [job("large", cpu=4, at=1), job("small", cpu=1, at=2)]
    assert decide(hosts, running, queue).starts == {"small": ("h1",)}


def test_the_least_important_spot_job_is_preempted_first() -> None:
    running = [placed(job("old", spot=True, at=1, cpu=2), "h0"), placed(job("new", spot=True, at=2, cpu=2), "h0")]
    decision = decide([host(cpu=4)], running, [job("dedicated", cpu=2, at=3)])
    assert decision == Decision({}, ("new",))


def test_nothing_is_preempted_while_enough_is_ending() -> None:
    spot = job("spot", spot=True, cpu=2)
    running = [placed(spot, "h0"), placed(job("ending", cpu=2), "h0", is_ending=True)]
    assert decide([host(cpu=4)], running, [job("dedicated", cpu=2, at=3)]) == Decision({})


def test_spot_jobs_that_would_not_be_enough_run_on() -> None:
    running = [placed(job("dedicated", cpu=3), "h0"), placed(job("spot", spot=True, cpu=1), "h0")]
    assert decide([host(cpu=4)], running, [job("large", cpu=2)]).preempted == ()


def test_a_host_that_is_gone_holds_nothing() -> None:
    running = [placed(job("lost", cpu=4), "gone")]
    assert decide([host(cpu=4)], running, [job("next", cpu=4)]).starts == {"next": ("h0",)}


def why(hosts: Sequence[Host], running: Sequence[Placed], *queue: Candidate) -> list[WaitReason]:
    return [why_waiting(hosts, running, queue, one) for one in queue]


def test_a_job_that_fits_starts() -> None:
    assert why([host()], [], job("a", cpu=4)) == [WaitReason.STARTS]


def test_the_first_that_waits_has_no_room_and_those_behind_it_may_not_have_what_it_needs() -> None:
    running = [placed(job("r", cpu=2), "h0")]
    reasons = why([host()], running, job("a", cpu=4), job("b", cpu=1, at=1), job("c", cpu=3, at=2))
    assert reasons == [WaitReason.NO_ROOM, WaitReason.RESERVED, WaitReason.NO_ROOM]


def test_a_job_that_starts_before_leaves_no_room() -> None:
    assert why([host()], [], job("a", cpu=3), job("b", cpu=2, at=1)) == [WaitReason.STARTS, WaitReason.NO_ROOM]


def test_a_dedicated_job_preempts_spot_jobs_if_that_is_enough() -> None:
    running = [placed(job("r", cpu=2, spot=True), "h0"), placed(job("s", cpu=2), "h0")]
    assert why([host()], running, job("a", cpu=2)) == [WaitReason.PREEMPTS]
    assert why([host()], running, job("a", cpu=2, spot=True)) == [WaitReason.NO_ROOM]
    assert why([host()], running, job("a", cpu=3)) == [WaitReason.NO_ROOM]


@given(clusters, candidates)
@settings(deadline=None)
def test_why_a_job_waits_is_what_is_decided(hosts: Sequence[Host], jobs: Sequence[Candidate]) -> None:
    decision = decide(hosts, [], jobs)
    for one in jobs:
        assert (why_waiting(hosts, [], jobs, one) is WaitReason.STARTS) == (one.job_id in decision.starts)
