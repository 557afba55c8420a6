"""What a worker does to its own process."""

import os
import subprocess
import sys

import pytest

_FAULTS_OF_TWENTY_ROUNDS = """
import resource
from proxy.app import keep_room

def round_of_bodies():
    return [b"x" * size for size in (1_000_000, 1_000_001, 1_000_002, 1_000_003)] and None

keep_room()
round_of_bodies()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    round_of_bodies()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="about glibc's allocator")
def test_bodies_that_come_and_go_do_not_fault_their_pages_in_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS_OF_TWENTY_ROUNDS], check=True, capture_output=True, text=True, timeout=60
    )
    a_round = 4_000_000 // 4096
    assert int(done.stdout) < a_round
