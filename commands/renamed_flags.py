"""Flags that had other names once: the old ones still work, and no help tells of them."""

from collections.abc import Mapping
from typing import Any

import click


class RenamedFlags(click.Command):
    """A command with renamed flags. `renamed`: each flag by its old name, such as `{"--start": "--since"}`."""

    def __init__(self, *arguments: Any, renamed: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self._renamed = dict(renamed)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [self._present(word) for word in args])

    def _present(self, word: str) -> str:
        flag, equals, value = word.partition("=")
        return self._renamed.get(flag, flag) + equals + value


WINDOW: Mapping[str, str] = {"--start": "--since", "--end": "--until"}
"""The flags of a window of time."""
