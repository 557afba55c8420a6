"""Paths of the management API with ids and names in them. Pure."""

from urllib.parse import quote

import click


def path(*segments: str) -> str:
    """`/v1/` and the segments, each as one segment whatever is in it. Raises click.ClickException."""
    for segment in segments:
        if segment in ("", ".", ".."):
            raise click.ClickException(f"{segment!r} is neither an id nor a name")
    return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)
