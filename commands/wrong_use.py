"""Refusals of wrong flags or arguments."""

from typing import IO, Any

import click


class WrongUseError(click.UsageError):
    """The flags or arguments are wrong. Three lines: Click's own have a blank one, and a usage of any length."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print usage, help and cause, each in one line."""
        if self.ctx is not None:
            click.echo(" ".join(self.ctx.get_usage().split()), file, err=True)
            click.echo(f"Try '{self.ctx.command_path} --help' for help.", file, err=True)
        click.echo(f"Error: {' '.join(self.message.split())}", file, err=True)
