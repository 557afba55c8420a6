"""`tollgate plan`, `tollgate apply` and `tollgate export` (docs/reference/policy-files.md)."""

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from commands.collector import collector_paused
from commands.connection import Client, Connection, over_api
from commands.edges.private_lines import PrivateLines
from commands.editing.deletion import is_terminal
from commands.output import cell_text, json_text
from commands.policy_file.applying import NewKey, NewWebhook, Observer, apply_steps
from commands.policy_file.document import read_document, read_value
from commands.policy_file.errors import PolicyFileError
from commands.policy_file.export import export_value, owner_to_export
from commands.policy_file.planning import Action, Consent, Plan, make_plan
from commands.policy_file.reading import (
    read_all_keys,
    read_keys,
    read_last_changes,
    read_losses,
    read_provider_names,
    read_workspace,
)
from commands.policy_file.rendering import plan_text, plan_value
from commands.policy_file.schema import SCHEMA
from commands.policy_file.steps import Step, audit_path, steps_of
from commands.policy_file.values import Kind, PolicyFile, Workspace
from commands.policy_file.yaml_text import MAX_CHARS, yaml_of
from commands.progress import reading
from commands.wrong_use import WrongUseError
from policy.endpoints import PROVIDER_NAMES

CHANGES = 2
"""The exit status of `plan` when there is something to do."""
_FAILED = 1


class _FailedUseError(WrongUseError):
    """The flags or arguments are wrong."""

    exit_code = _FAILED


class _PlanCommand(click.Command):
    """Wrong flags end with exit status 1: 2 means that there are changes."""

    def make_context(self, *options: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*options, **more)
        except click.UsageError as error:
            raise _FailedUseError(error.format_message(), error.ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _FailedUseError(error.format_message(), error.ctx) from None


def _print_schema(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(json_text(SCHEMA))
        context.exit(0)


_file = click.argument("file", type=click.File("rb"), metavar="FILE")
_consent = (
    click.option("--prune", is_flag=True, help="Delete what the file owns and no longer describes."),
    click.option("--adopt", is_flag=True, help="Take over what the file describes and no file owns."),
    click.option("--overwrite-drift", is_flag=True, help="Overwrite what something else changed since the last apply."),
)


def _with_consent(command: Any) -> Any:
    for option in reversed(_consent):
        command = option(command)
    return command


@click.command(cls=_PlanCommand)
@_file
@_with_consent
@click.option(
    "--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema, help="Print the JSON Schema."
)
@over_api
@collector_paused()
def plan(connection: Connection, file: BinaryIO, prune: bool, adopt: bool, overwrite_drift: bool) -> None:
    """Print what `apply` would change to bring the workspace to what the policy file FILE says.

    The exit status is 0 if there is nothing to do, 2 if there are changes, and 1 if something is refused.
    """
    prepared = _prepare(connection, file, Consent(prune, adopt, overwrite_drift))
    prepared.show(connection.as_json)
    sys.exit(_FAILED if prepared.plan.refusals else CHANGES if prepared.plan.changes else 0)


@click.command()
@_file
@_with_consent
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask; needed to delete without a terminal.")
@click.option(
    "--webhook-secrets",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the signing secrets of new webhooks to this file, which only its owner can read.",
)
@click.option(
    "--new-keys",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Create keys that are missing, and append them to this file, which only its owner can read.",
)
@over_api
@collector_paused()
def apply(
    connection: Connection,
    file: BinaryIO,
    is_sure: bool,
    webhook_secrets: Path | None,
    new_keys: Path | None,
    **consent: bool,
) -> None:
    """Bring the workspace to what the policy file FILE says. Running it again changes nothing.

    It deletes nothing without --prune, and changes nothing that the file does not own without --adopt. It revokes no
    key, and creates one only with --new-keys.
    """
    prepared = _prepare(connection, file, Consent(**consent))
    prepared.show(connection.as_json)
    if prepared.plan.refusals:
        sys.exit(_FAILED)
    if new_keys is None and prepared.creates_keys:
        raise click.UsageError("--new-keys FILE is needed for a plan that creates keys: they are shown only once")
    _ask(prepared, is_sure)
    with PrivateLines(webhook_secrets) as file_of_secrets, PrivateLines(new_keys) as file_of_keys:
        _run(connection, prepared, file_of_secrets, file_of_keys)


def _ask(prepared: "_Prepared", is_sure: bool) -> None:
    """Ask on a terminal. Elsewhere nobody can answer, so a plan that deletes needs `--yes`."""
    if is_sure or not prepared.steps:
        return
    if is_terminal():
        click.confirm("Apply?", abort=True, err=True)
    elif any(change.action is Action.DELETE for change in prepared.plan.changes):
        raise click.UsageError("--yes is needed for a plan that deletes where nobody can be asked")


@click.command()
@click.option("--name", help="Of the policy file: the owner. By default the only owner in the workspace.")
@over_api
@collector_paused()
def export(connection: Connection, name: str | None) -> None:
    """Print the workspace as a policy file. Secrets are references to environment variables.

    With --json it is the same file as JSON, which is YAML too. It holds what the owner NAME or no policy file owns.
    """
    workspace = replace(_read(connection, {}), keys=connection.run(read_all_keys))
    try:
        value, rest = export_value(workspace, owner_to_export(workspace) if name is None else name)
        read_value(value)
    except PolicyFileError as error:
        raise click.ClickException(str(error)) from None
    if rest:
        click.echo(f"{rest} resources of other policy files are left out.", err=True)
    click.echo(json_text(value) + "\n" if connection.as_json else yaml_of(value), nl=False)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A plan, with all that is needed to carry it out."""

    plan: Plan
    steps: tuple[Step, ...]
    workspace: Workspace
    values: dict[str, str]

    @property
    def creates_keys(self) -> bool:
        """Return whether there are keys to create, whose plaintext has to go somewhere."""
        changes = self.plan.changes
        return any(change.kind is Kind.KEY and change.action is Action.CREATE for change in changes)

    def show(self, as_json: bool) -> None:
        output = plan_value(self.plan, self.steps) if as_json else plan_text(self.plan, self.steps)
        click.echo(json_text(output) if as_json else output)


def _prepare(connection: Connection, file: BinaryIO, consent: Consent) -> _Prepared:
    try:
        document = read_document(_text(file))
        values = _values(document)
    except PolicyFileError as error:
        raise click.ClickException(str(error)) from None
    workspace = replace(_read(connection, values), providers=_providers(connection, document))
    if document.keys:
        groups = {key.group for key in document.keys} & workspace.groups.keys()
        workspace = replace(workspace, keys=connection.run(lambda client: read_keys(client, groups)))
    plan = _explained(connection, make_plan(document, workspace, consent, frozenset(values)))
    return _Prepared(plan, () if plan.refusals else steps_of(plan, workspace), workspace, values)


def _explained(connection: Connection, plan: Plan) -> Plan:
    """The plan with who changed what drifted, and with what is lost with the groups that are deleted."""
    drifts = {audit_path(drift): drift for drift in plan.drifts}
    groups = plan.deleted_groups

    async def work(client: Client) -> Plan:
        resources = {path: drift.before for path, drift in drifts.items() if drift.before is not None}
        changes = await read_last_changes(client, resources)
        losses = await read_losses(client, groups.values())
        of_drifts = {(drifts[path].kind, drifts[path].key): change for path, change in changes.items()}
        by_key = {key: losses[id] for key, id in groups.items() if id in losses}
        return replace(plan, last_changes=of_drifts).with_losses(by_key)

    return connection.run(work) if drifts or groups else plan


def _providers(connection: Connection, document: PolicyFile) -> Collection[str]:
    """The names that providers may have. Control is asked only if the file has one that is an alias of its own."""
    if all(endpoint.target["provider"] in PROVIDER_NAMES for endpoint in document.endpoints):
        return PROVIDER_NAMES
    return connection.run(read_provider_names)


def _read(connection: Connection, values: dict[str, str]) -> Workspace:
    with reading("groups") as report:
        return connection.run(lambda client: read_workspace(client, values, report))


def _text(file: BinaryIO) -> str:
    try:
        return file.read(4 * MAX_CHARS + 1).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PolicyFileError(["the file is not UTF-8 text"]) from None


def _values(document: PolicyFile) -> dict[str, str]:
    """The value of each secret whose environment variable is set and not empty."""
    values = {secret.name: os.environ.get(secret.env or "", "") for secret in document.secrets}
    return {name: value for name, value in values.items() if value}


def _run(connection: Connection, prepared: _Prepared, secrets_file: PrivateLines, keys_file: PrivateLines) -> None:
    def step(number: int, total: int, step: Step) -> None:
        click.echo(f"[{number}/{total}] {step.does} {step.kind} {cell_text(step.key)}", err=True)

    def webhook(new: NewWebhook) -> None:
        try:
            is_kept = secrets_file.append({"id": new.id, "webhook": new.key, "secret": new.secret})
        except OSError as error:
            message = f"the signing secret of {new.id} could not be kept ({error.strerror}): rotate it to see one"
            raise click.ClickException(f"{message}.\nApply again: it does the rest") from None
        if not is_kept:
            click.echo(f"The signing secret of {new.id} was not kept: rotate it to see one.", err=True)

    def key(new: NewKey) -> None:
        try:
            keys_file.append({"prefix": new.prefix, "key": new.key, "api_key": new.api_key})
        except OSError as error:
            remedy = f"rotate {new.prefix} with an overlap of 0 s to see one, and apply again: it does the rest"
            raise click.ClickException(
                f"the new key {new.key} could not be kept ({error.strerror}): {remedy}"
            ) from None

    steps = prepared.steps
    workspace = prepared.workspace
    values = prepared.values
    connection.run(lambda client: apply_steps(client, steps, workspace, values, Observer(step, webhook, key)))
    if steps:
        deleted = sum(change.action is Action.DELETE for change in prepared.plan.changes)
        summary = f"{len(prepared.plan.changes) - deleted} created, changed or adopted, {deleted} deleted."
        click.echo(f"Applied {prepared.plan.owner}: {summary}", err=True)
