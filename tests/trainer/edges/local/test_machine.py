"""Checks what this machine has for jobs."""

import os

from trainer.edges.local.machine import least_used, this_host
from trainer.settings import Capacity


def test_capacity_of_the_settings_wins_over_the_machine() -> None:
    host = this_host(Capacity(cpu=64, memory_mib=1024, nodes=3))

    assert (host.millicpu, host.memory_mib, host.max_nodes) == (64_000, 1024, 3)


def test_machine_without_settings_offers_what_it_has() -> None:
    host = this_host(Capacity())

    assert 1000 <= host.millicpu <= len(os.sched_getaffinity(0)) * 1000
    assert host.memory_mib > 0
    assert host.max_nodes >= 8


def test_nodes_get_the_processors_that_the_fewest_have() -> None:
    cpus = sorted(os.sched_getaffinity(0))

    assert least_used(1, cpus[:-1]) == (cpus[-1],)
    assert least_used(len(cpus) + 5, []) == tuple(cpus)
