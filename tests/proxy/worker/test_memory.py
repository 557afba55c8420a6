"""A worker tunes its process's memory allocator."""

import os
import subprocess
import sys

import pytest

_FAULTS_OF_TWENTY_ROUNDS = """
import resource
from proxy.worker.memory import keep_room

def round_of_bodies():
    return [b"x" * size for size in (1_000_000, 1_000_001, 1_000_002, 1_000_003)] and None

keep_room()
round_of_bodies()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    round_of_bodies()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

_GIVEN_BACK_AFTER_A_BURST = """
from pathlib import Path
from proxy.worker.memory import keep_room, return_free_memory

def own_kib():
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in rollup if line.startswith("Pss_Anon:"))

keep_room()
burst = [bytes(1500) for _ in range(20_000)]
kept = burst[::50]
open_kib = own_kib()
burst.clear()
kept_kib = own_kib()
return_free_memory()
print(open_kib - kept_kib, kept_kib - own_kib())
"""
ON_GLIBC = pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="about glibc's allocator")


def run(script: str) -> list[int]:
    """The numbers that `script` prints in a new process."""
    argv = [sys.executable, "-c", script]
    process = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    return [int(word) for word in process.stdout.split()]


@ON_GLIBC
def test_memory_freed_after_a_burst_is_returned_to_the_system() -> None:
    by_itself_kib, when_asked_kib = run(_GIVEN_BACK_AFTER_A_BURST)
    taken_kib = 20_000 * 1500 // 1024
    assert by_itself_kib < taken_kib / 10
    assert when_asked_kib > taken_kib / 2


@ON_GLIBC
def test_repeated_bodies_reuse_their_memory_pages() -> None:
    (faults,) = run(_FAULTS_OF_TWENTY_ROUNDS)
    a_round = 4_000_000 // 4096
    assert faults < a_round
