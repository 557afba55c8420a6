"""Splits what one worker holds into commands: of one workspace each, and of a bounded size."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from proxy.async_requests.requests import AttemptRef, Delivery

RENEW_MOST = 100
"""The most leases of one command: about 2 ms of Redis' time."""
Held = TypeVar("Held", AttemptRef, Delivery)


def by_workspace(all_held: Iterable[Held]) -> Iterator[tuple[str, list[Held]]]:
    grouped: dict[str, list[Held]] = {}
    for one in all_held:
        grouped.setdefault(one.deployment.workspace_id, []).append(one)
    for workspace_id, of_workspace in grouped.items():
        rest = iter(of_workspace)
        while some := list(islice(rest, RENEW_MOST)):
            yield workspace_id, some
