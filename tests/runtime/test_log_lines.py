"""An uncaught error is a log line, like everything else that a process writes. An outage is two lines."""

import json
import logging
import subprocess
import sys

import pytest

from runtime.log_lines import OutageLog, PacedLog, cause_of

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
    result = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    for line, text in zip(lines, ("of a library", "of a finalizer", "division by zero", "of the process"), strict=True):
        assert text in line["message"]
        assert {"time", "level", "logger", "process"} <= line.keys()
    assert ["trace" in line for line in lines] == [False, True, True, True]


def test_an_outage_is_told_when_it_begins_changes_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    outage = OutageLog(logging.getLogger("test"))
    for message in ("no route", "no route", "refused"):
        outage.begins(message)
    for _ in range(2):
        outage.ends("back")
    assert caplog.messages == ["no route", "refused", "back"]


def test_an_outage_from_the_start_is_told_if_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now_s = 100.0
    outage = OutageLog(logging.getLogger("test"), silent_s=10.0, clock=lambda: now_s)
    outage.begins("refused")
    assert not caplog.messages
    now_s = 110.0
    outage.begins("refused")
    outage.ends("back")
    assert caplog.messages == ["refused", "back"]


def test_a_start_that_succeeds_is_not_told_and_ends_the_silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    outage = OutageLog(logging.getLogger("test"), silent_s=10.0, clock=lambda: 100.0)
    outage.begins("refused")
    outage.ends("back")
    outage.begins("refused again")
    assert caplog.messages == ["refused again"]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (TimeoutError(), "TimeoutError"),
        (ConnectionResetError(""), "ConnectionResetError"),
        (ValueError("\nsecond line"), "ValueError"),
        (OSError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (RuntimeError("first\nsecond"), "first"),
    ],
)
def test_every_error_has_a_cause_of_one_line(error: Exception, cause: str) -> None:
    assert cause_of(error) == cause


def test_warning_that_is_due_many_times_is_logged_once_a_second_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [100.0]
    paced = PacedLog(logging.getLogger("test"), clock=lambda: now[0])
    for _ in range(50):
        paced.warning("refused")
    now[0] += 1
    paced.warning("refused")
    assert caplog.messages == ["refused", "refused There were 49 more since the last such line."]
