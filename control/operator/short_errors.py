"""Reports of a failed `tollgate` command: in three lines at most, and full disks without a traceback."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from commands.wrong_use import WrongUseError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class ShortErrors(click.Group):
    """The group of all commands."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        with _short():
            return super().make_context(*arguments, **more)

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
        if error.errno in _FULL:
            raise click.ClickException(f"cannot write: {error.strerror}") from None
        if error.errno in _FORBIDDEN and error.filename:
            raise click.ClickException(f"{error.filename}: {error.strerror}") from None
        raise
