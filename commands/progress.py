"""The progress of a command, for people who wait: in place on a terminal, as lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

_CLEAR = "\r\x1b[2K"
Print = Callable[[str], None]


class ProgressPrinter:
    """Prints progress: in place on a terminal, as lines elsewhere."""

    def __init__(self, write: Print, is_terminal: bool) -> None:
        self._write = write
        self._is_terminal = is_terminal
        self._last = ""

    def show(self, line: str) -> None:
        if self._is_terminal:
            self._write(_CLEAR + line)
        elif line != self._last:
            self._write(line + "\n")
        self._last = line

    def end(self) -> None:
        """End the line, if there is one."""
        if self._is_terminal and self._last:
            self._write("\n")


@contextmanager
def reading(what: str) -> Iterator[Callable[[int], None]]:
    """A function that tells, on standard error, how many of `what` have been read."""
    printer = ProgressPrinter(lambda text: click.echo(text, nl=False, err=True), sys.stderr.isatty())
    try:
        yield lambda count: printer.show(f"{count} {what} read")
    finally:
        printer.end()
