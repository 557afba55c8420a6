"""Carries out the steps of a plan, one call after the other. What is done stays done when a step fails.

A later run reads the workspace anew and does what is left, so nothing has to be remembered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commands.connection import Client
from commands.errors import ManagementError
from commands.output import cell_text
from commands.policy_file.steps import IdOf, Step, ValueOf
from commands.policy_file.values import Kind, Workspace

_SHOWN_LINES = 2


class StoppedError(ManagementError):
    """A step was refused or got no answer. The message says which one, why, and how to go on."""


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """A webhook that was created, and its signing secret, which the API shows only once."""

    id: str
    key: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was created, in plaintext, which the API shows only once."""

    prefix: str
    key: str
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Observer:
    """Hears of each step before it is taken, and of each webhook and key that was created."""

    step: Callable[[int, int, Step], None]
    webhook: Callable[[NewWebhook], None]
    key: Callable[[NewKey], None]


async def apply_steps(
    client: Client, steps: Sequence[Step], workspace: Workspace, values: Mapping[str, str], observer: Observer
) -> None:
    """Take all steps in order. `values`: secrets by name. Raises StoppedError at the first that fails."""
    ids = _ids_of(workspace)
    for number, step in enumerate(steps, 1):
        observer.step(number, len(steps), step)
        path = "/".join(_resolved(part, ids, values) for part in step.path)
        try:
            answer = await client.call(step.method, path, _resolved(step.body, ids, values), **step.query)
        except ManagementError as error:
            raise _stopped(step, number, len(steps), error) from None
        if step.method == "POST" and step.kind is Kind.KEY:
            observer.key(NewKey(answer["prefix"], step.key, answer["api_key"]))
        elif step.method == "POST":
            ids[step.kind, step.key] = answer["id"]
        if step.method == "POST" and step.kind is Kind.WEBHOOK:
            observer.webhook(NewWebhook(answer["id"], step.key, answer["secret"]))


def _ids_of(workspace: Workspace) -> dict[tuple[Kind, str], str]:
    ids = {(Kind.SECRET, key): item.id for key, item in workspace.secrets.items()}
    return ids | {(Kind.GROUP, key): item.id for key, item in workspace.groups.items()}


def _resolved(part: Any, ids: Mapping[tuple[Kind, str], str], values: Mapping[str, str]) -> Any:
    """The same with ids and values instead of references."""
    match part:
        case IdOf(kind=kind, key=key):
            return ids[kind, key]
        case ValueOf(name=name):
            return values[name]
        case dict():
            return {name: _resolved(value, ids, values) for name, value in part.items()}
        case list():
            return [_resolved(value, ids, values) for value in part]
    return part


def _stopped(step: Step, number: int, total: int, error: ManagementError) -> StoppedError:
    reason = "\n".join(str(error).splitlines()[:_SHOWN_LINES])
    progress = f"{number - 1} of {total} steps are done. Mend the cause and apply again: it does the rest"
    return StoppedError(f"{step.does} {step.kind} {cell_text(step.key)}: {reason}\n{progress}")
