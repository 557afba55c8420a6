"""Deployments of a platform model: their settings, their replicas, and the changes of their status. No SQL, no HTTP.

See docs/reference/management-api.md#deployments.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from control.edges.sql import model_rows
from control.edges.sql.database import DanglingError
from control.edges.sql.store import Connection, Store, WriteTx
from control.errors import DeploymentInUseError, DeploymentNotFoundError, InvalidFieldError
from control.records.audit import Change
from control.records.ids import new_id
from control.records.loads import UNREPORTED, Load
from control.records.logs import LogLine
from control.records.models import DeploymentRecord, EnvironmentRecord, ModelRecord, PageOfNames
from control.resources.changes.resource_paths import path_of
from control.resources.changes.shown_platform import deployment_sides
from control.resources.endpoints import UpstreamUrls
from control.resources.logs import Logs, now_ns
from control.resources.platform import statuses
from control.resources.platform.loads import LoadBook
from control.resources.platform.models import find_model, with_model_locked
from policy.deployments import DEFAULT_ENVIRONMENT, DEPLOYING, DEVELOPMENT, HAS_FAILED, deployment_of
from policy.endpoints import EndpointRuleError

Settings = Mapping[str, Any]
"""`name`, `wake_url`, `health`, `max_concurrency`, `max_queued`: those that are given."""
_SHOWN = (DEFAULT_ENVIRONMENT, DEVELOPMENT)


@dataclass(frozen=True, slots=True)
class DeploymentRef:
    """Names a deployment: by its id, or as the one that an environment points to."""

    workspace_id: str
    model_id: str
    deployment_id: str | None = None
    environment: str | None = None


@dataclass(frozen=True, slots=True)
class DeploymentSummary:
    """A deployment, which environments point to it, and what the proxies report of it."""

    record: DeploymentRecord
    environment: str | None
    """The first one by name."""
    is_production: bool
    is_development: bool
    load: Load


async def create_deployment(
    store: Store, urls: UpstreamUrls, ref: DeploymentRef, settings: Settings
) -> DeploymentRecord:
    """A deployment without replicas: calls to it wait for the first ones."""
    await _check_wake_url(urls, settings)

    async def work(tx: WriteTx, model: ModelRecord) -> DeploymentRecord:
        first = DeploymentRecord(new_id("dep"), model.id, "", DEPLOYING, (), tx.now_ms, tx.now_ms)
        record = replace(first, **settings)
        await model_rows.insert_deployment(tx, model, record)
        sides = deployment_sides(None, record)
        tx.audit(ref.workspace_id, Change("deployment.create", path_of(record), *sides))
        return record

    return await with_model_locked(store, ref.workspace_id, ref.model_id, work)


async def change_settings(store: Store, urls: UpstreamUrls, ref: DeploymentRef, settings: Settings) -> DeploymentRecord:
    await _check_wake_url(urls, settings)
    return await _change(store, ref, "update", lambda record: statuses.with_settings(record, settings))


async def remove_deployment(store: Store, ref: DeploymentRef) -> str:
    """Delete a deployment. Refused while an environment points to it."""

    async def work(tx: WriteTx, model: ModelRecord) -> str:
        record = await _find(tx.conn, ref)
        if names := await model_rows.environments_pointing_to(tx.conn, record.id):
            raise DeploymentInUseError(names)
        await model_rows.delete_deployment(tx, model, record.id)
        sides = deployment_sides(record, None)
        tx.audit(ref.workspace_id, Change("deployment.delete", path_of(record), *sides))
        return record.id

    try:
        return await with_model_locked(store, ref.workspace_id, ref.model_id, work)
    except DanglingError:
        raise DeploymentInUseError from None


async def check_replicas(urls: UpstreamUrls, replicas: Sequence[str]) -> tuple[str, ...]:
    """The replicas' base URLs as they are kept. Call it before the transaction: it resolves names, all at once."""

    async def check(index: int, url: str) -> None:
        try:
            await urls.check_replica_url(url)
        except EndpointRuleError as error:
            raise InvalidFieldError(f"replicas.{index}", error.message) from None

    checks = (check(index, url) for index, url in enumerate(replicas))
    for error_or_none in await asyncio.gather(*checks, return_exceptions=True):
        if error_or_none is not None:
            raise error_or_none
    return tuple(dict.fromkeys(url.rstrip("/") for url in replicas))


async def replace_replicas(
    store: Store, loads: LoadBook, ref: DeploymentRef, replicas: tuple[str, ...]
) -> DeploymentRecord:
    """Replace the whole list."""
    reports = await _loads(store, loads, ref)

    def changed(record: DeploymentRecord) -> DeploymentRecord:
        return statuses.with_replicas(record, replicas, reports.get(record.id, UNREPORTED))

    return await _change(store, ref, "set_replicas", changed)


async def activate_deployment(store: Store, loads: LoadBook, ref: DeploymentRef) -> DeploymentRecord:
    reports = await _loads(store, loads, ref)

    def changed(record: DeploymentRecord) -> DeploymentRecord:
        return statuses.activated(record, reports.get(record.id, UNREPORTED))

    return await _change(store, ref, "activate", changed)


async def deactivate_deployment(store: Store, ref: DeploymentRef) -> DeploymentRecord:
    return await _change(store, ref, "deactivate", statuses.deactivated)


async def retry_deployment(store: Store, loads: LoadBook, ref: DeploymentRef) -> tuple[bool, DeploymentRecord]:
    """Try again a deployment that has failed. Returns whether it had failed, and its record now."""
    reports = await _loads(store, loads, ref)
    tried: list[bool] = []

    def changed(record: DeploymentRecord) -> DeploymentRecord:
        tried.append(record.status in HAS_FAILED)
        return statuses.activated(record, reports.get(record.id, UNREPORTED)) if tried[-1] else record

    record = await _change(store, ref, "retry", changed)
    return tried[-1], record


async def report_status(
    store: Store, logs: Logs, ref: DeploymentRef, status: str, error_message: str | None
) -> DeploymentRecord:
    """Set the status that a launcher of replicas reports. The message goes into the deployment's log, too."""
    record = await _change(store, ref, "report_status", lambda record: statuses.moved(record, status, error_message))
    if error_message:
        await logs.write([(record.id, LogLine(now_ns(), "ERROR", error_message))])
    return record


async def observe_health(store: Store, model_id: str, deployment_id: str, load: Load) -> None:
    """Change the status to what the proxies' report makes of it. Without effect if the deployment is gone."""
    async with store.read() as conn:
        record = await model_rows.find_deployment(conn, model_id, deployment_id)
    if record is None or statuses.after_report(record, load) == record:
        return

    async def work(tx: WriteTx) -> None:
        model = await model_rows.lock_reported_model(tx, model_id)
        old = await model_rows.lock_deployment(tx, model_id, deployment_id) if model else None
        if model and old:
            await _write(tx, model, old, statuses.after_report(old, load))

    await store.transact(work)


async def read_deployment(store: Store, ref: DeploymentRef) -> DeploymentRecord:
    async with store.read() as conn:
        return await _find(conn, ref)


async def read_deployments(store: Store, ref: DeploymentRef, page: PageOfNames) -> Sequence[DeploymentRecord]:
    """Return the page of the model's deployments, oldest first."""
    async with store.read() as conn:
        await find_model(conn, ref.workspace_id, ref.model_id)
        return await model_rows.list_deployments(conn, ref.model_id, page.after, page.limit, page.name)


async def summarize(
    store: Store, loads: LoadBook, model_id: str, records: Sequence[DeploymentRecord]
) -> list[DeploymentSummary]:
    """Return these deployments of one model with what changes without them."""
    async with store.read() as conn:
        first = await model_rows.first_environments(conn, [record.id for record in records])
        pointers = await model_rows.pointers_of(conn, [model_id], _SHOWN)
    production, development = (deployment_of(pointers.get(model_id, {}), name) for name in _SHOWN)
    reports = await loads.loads([record.id for record in records])
    return [
        DeploymentSummary(
            *(record, first.get(record.id), record.id == production, record.id == development),
            reports.get(record.id, UNREPORTED),
        )
        for record in records
    ]


async def current_deployments(
    store: Store, loads: LoadBook, model_id: str, records: Sequence[EnvironmentRecord]
) -> list[DeploymentSummary | None]:
    """Return the deployment of each of these environments of one model; None for an empty environment."""
    ids = {record.deployment_id for record in records if record.deployment_id is not None}
    async with store.read() as conn:
        present = await model_rows.find_deployments(conn, model_id, ids)
    summaries = await summarize(store, loads, model_id, present)
    by_id = {summary.record.id: summary for summary in summaries}
    return [by_id.get(record.deployment_id or "") for record in records]


async def _loads(store: Store, loads: LoadBook, ref: DeploymentRef) -> Mapping[str, Load]:
    """Return the proxies' report of the deployment. Read before the transaction, which may find another one by then."""
    return await loads.loads([(await read_deployment(store, ref)).id])


async def _check_wake_url(urls: UpstreamUrls, settings: Settings) -> None:
    url: str | None = settings.get("wake_url")
    if url is None:
        return
    try:
        await urls.check_wake_url(url)
    except EndpointRuleError as error:
        raise InvalidFieldError("wake_url", error.message) from None


async def _find(conn: Connection, ref: DeploymentRef) -> DeploymentRecord:
    """Refused when the workspace has no such model, the model no such deployment, or the environment none at all."""
    await find_model(conn, ref.workspace_id, ref.model_id)
    deployment_id = ref.deployment_id
    if ref.environment is not None:
        pointer = await model_rows.find_environment(conn, ref.model_id, ref.environment)
        deployment_id = pointer.deployment_id if pointer else None
    record = await model_rows.find_deployment(conn, ref.model_id, deployment_id) if deployment_id else None
    return _existing(record)


async def _change(
    store: Store, ref: DeploymentRef, verb: str, changed: Callable[[DeploymentRecord], DeploymentRecord]
) -> DeploymentRecord:
    async def work(tx: WriteTx, model: ModelRecord) -> DeploymentRecord:
        present = await _find(tx.conn, ref)
        old = _existing(await model_rows.lock_deployment(tx, model.id, present.id))
        record = await _write(tx, model, old, changed(old))
        if record != old:
            sides = deployment_sides(old, record)
            tx.audit(ref.workspace_id, Change(f"deployment.{verb}", path_of(record), *sides))
        return record

    return await with_model_locked(store, ref.workspace_id, ref.model_id, work)


async def _write(tx: WriteTx, model: ModelRecord, old: DeploymentRecord, changed: DeploymentRecord) -> DeploymentRecord:
    """Write what differs. `updated_at` moves only then."""
    if changed == old:
        return old
    record = replace(changed, updated_at_ms=max(tx.now_ms, old.updated_at_ms + 1))
    await model_rows.update_deployment(tx, model, old, record)
    return record


def _existing(record: DeploymentRecord | None) -> DeploymentRecord:
    if record is None:
        raise DeploymentNotFoundError
    return record
