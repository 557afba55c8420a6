"""How `tollgate` tells that a command failed: in at most three lines, and without a traceback for a full disk."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from commands.wrong_use import WrongUseError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ShortErrors(click.Group):
    """The group of all commands."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        with _short():
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _short():
            return super().invoke(ctx)


@contextmanager
def _short() -> Iterator[None]:
    try:
        yield
    except (WrongUseError, click.exceptions.NoArgsIsHelpError):  # the latter's message is the help
        raise
    except click.UsageError as error:
        raise WrongUseError(error.format_message(), error.ctx) from None
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise click.ClickException(f"cannot write: {error.strerror}") from None
