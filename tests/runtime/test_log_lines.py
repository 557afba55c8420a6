"""What nothing catches is a log line, like everything else that a process writes."""

import json
import subprocess
import sys

_PROGRAM = """
import logging, threading, warnings
from runtime.log_lines import log_to_stderr, log_uncaught

class Broken:
    def __del__(self):
        raise ValueError("of a finalizer")

log_to_stderr("INFO")
log_uncaught()
warnings.warn("of a library", stacklevel=1)
Broken()
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise KeyError("of the process")
"""


def test_what_nothing_catches_is_a_log_line() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    for line, text in zip(lines, ("of a library", "of a finalizer", "division by zero", "of the process"), strict=True):
        assert text in line["message"]
        assert {"time", "level", "logger", "process"} <= line.keys()
    assert ["trace" in line for line in lines] == [False, True, True, True]
