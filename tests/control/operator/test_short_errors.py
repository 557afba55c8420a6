"""Checks how `tollgate` ends after faults of the environment: a disk, Ctrl-C at its start, a locale."""

import errno
import io
import os
import signal
import sys
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner

from control.operator.cli import use_utf_8
from control.operator.entry import main
from control.operator.short_errors import ShortErrors


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "cannot write: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/data/up.json"), "/data/up.json: Permission denied"),
        (PermissionError(errno.EACCES, "of no file"), ""),
        (OSError(errno.EBADF, os.strerror(errno.EBADF)), ""),
    ],
)
def test_full_disks_and_foreign_files_are_told_and_other_faults_are_raised(error: OSError, message: str) -> None:
    @click.group(cls=ShortErrors)
    def group() -> None:
        """A command line."""

    @group.command()
    def write() -> None:
        raise error

    ended = CliRunner().invoke(group, ["write"])
    assert ended.stderr == (f"Error: {message}\n" if message else "")
    assert isinstance(ended.exception, SystemExit if message else OSError)


@pytest.mark.parametrize(("is_terminal", "expected"), [(False, "\u9867".encode()), (True, b"?")])
def test_names_are_printed_whatever_the_locale_is(is_terminal: bool, expected: bytes) -> None:
    class Stream(io.TextIOWrapper):
        def isatty(self) -> bool:
            return is_terminal

    output = io.BytesIO()
    stream = Stream(output, encoding="latin-1")
    use_utf_8(stream)
    print("\u9867", end="", file=stream, flush=True)
    assert output.getvalue() == expected


def test_interrupt_ends_the_command_quietly_while_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []

    class Command(ModuleType):
        def __getattr__(self, name: str) -> Any:
            handlers.append(signal.getsignal(signal.SIGINT))
            return lambda: handlers.append(signal.getsignal(signal.SIGINT))

    monkeypatch.setitem(sys.modules, "control.operator.cli", Command("cli"))
    main()
    assert handlers[0] is signal.SIG_DFL
    assert handlers[-1] is signal.default_int_handler
