"""Limits on descriptors and memory, in a process of their own."""

import subprocess
import sys


def run(program: str) -> list[str]:
    """The words that the program prints, under a soft limit of 64 descriptors."""
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))\n" + program
    return subprocess.run([sys.executable, "-c", limited], check=True, capture_output=True, text=True).stdout.split()


def test_soft_limit_on_descriptors_is_raised_to_the_hard_one() -> None:
    program = "from runtime.exhaustion import *\nraise_descriptor_limit()\nprint(descriptor_limit())"
    assert run(program) == ["128"]


def test_last_descriptors_are_an_eighth_of_a_low_limit() -> None:
    program = "from runtime.exhaustion import *\nprint(highest_descriptor(32), highest_descriptor(64))"
    assert run(program) == ["55", "47"]


def test_lack_of_descriptors_is_seen_by_taking_one() -> None:
    program = """
import os
from runtime.exhaustion import *
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(64 - len(os.listdir("/proc/self/fd")) + 1)]
print(no_descriptor_is_left())
os.close(held.pop())
print(no_descriptor_is_left())
"""
    assert run(program) == ["True", "False"]
