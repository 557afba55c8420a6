"""Composition root of the control plane: builds every part, mounts the operations, stops the parts in reverse order."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from aiohttp import web

from control.api import (
    endpoints,
    events,
    groups,
    health,
    internal_deployments,
    internal_events,
    internal_machines,
    internal_snapshot,
    internal_training,
    keys,
    secrets,
    usage,
    webhooks,
)
from control.api.billing import balances, group_spend, prices, usage_report
from control.api.changes import audit_events
from control.api.changes.request_ids import show_request_id
from control.api.console import console_sessions, relay, usage_links, usage_page, usage_requests, usage_statements
from control.api.console import login as people_login
from control.api.console import pages as console_pages
from control.api.federated_keys import operations as federated_keys
from control.api.federated_keys import spend as key_spend
from control.api.find import all_keys, matches
from control.api.identity import internal_refresh, provider
from control.api.inference_document.document import inference_routes
from control.api.platform import (
    deployment_actions,
    deployment_logs,
    deployments,
    environments,
    graphql,
    models,
    promotions,
    settings_calls,
    signing_secrets,
    teams,
    users,
)
from control.api.protocol import observability
from control.api.protocol.bodies import MAX_BODY_BYTES, refuse_compressed_bodies
from control.api.protocol.dependencies import DEPENDENCIES
from control.api.protocol.errors import render_problems
from control.api.protocol.openapi import description_routes
from control.api.protocol.operations import Operation, mount
from control.api.session_pages import pages, terminal_sockets
from control.api.session_pages.pairing import TERMINALS, Terminals
from control.api.traffic import health as gateway_health
from control.api.traffic import internal_requests, internal_traffic, requests, traffic
from control.api.training import (
    checkpoint_files,
    checkpoints,
    instance_types,
    job_logs,
    job_metrics,
    jobs,
    projects,
    search,
    sessions,
)
from control.api.training_hosts import gpu_capacity, queue_context
from control.api.uploads import downloads, objects, upload_credentials
from control.dependencies import Dependencies
from control.edges.checkpoint_store import CheckpointStore
from control.edges.inference_client import InferenceClient
from control.edges.issuer_client import IssuerClient
from control.edges.login_provider import LoginProviderClient
from control.edges.name_resolution import UpstreamUrlChecker
from control.edges.redis.client import connect
from control.edges.redis.hints import HintPublisher
from control.edges.redis.load_book import LocalLoadBook, RedisLoadBook
from control.edges.redis.probe import RedisProbe
from control.edges.redis.spend.spend_hashes import SpendHashes
from control.edges.redis.throttle_windows import LocalWindows, RedisWindows
from control.edges.redis.usage_counters import UsageCounters
from control.edges.sql.events.clock import EventClock
from control.edges.sql.events.ingest import Ingest
from control.edges.sql.events.upkeep import add_days
from control.edges.sql.last_used import LastUsed
from control.edges.sql.log_rows import OF_DEPLOYMENTS, OF_TRAINING_JOBS
from control.edges.sql.migrations.migrate import migrate
from control.edges.sql.store import Store
from control.edges.telemetry.metrics import Metrics
from control.edges.wake_client import WakeClient
from control.edges.webhook_client import WebhookClient
from control.errors import DatabaseUnavailableError, UsageUnavailableError
from control.full_collections import collect_when_idle
from control.readiness import ReadinessChecks
from control.resources import policy_feed
from control.resources.alerts.looks import FigureSources
from control.resources.alerts.watch import AlertWatch
from control.resources.billing.hourly_sums import HourlySumMaker
from control.resources.billing.published_prices import PricePublisher
from control.resources.billing.unsent_metadata import UnsentMetadata
from control.resources.billing.usage_report import UsageReports
from control.resources.billing_events import EventReader
from control.resources.console.login.provider import LoginProvider
from control.resources.console.usage_links import UsageLinkSealer
from control.resources.cursors import CursorSigner
from control.resources.identity.refreshing import KeyRefresher
from control.resources.logs import LogBounds, Logs
from control.resources.platform.load_reports import LoadReports
from control.resources.platform.wake_sender import WakeSender
from control.resources.policy_feed import OlderProxies
from control.resources.sealing.key_notes import KeyNotes
from control.resources.spend.counting import SpendCounting
from control.resources.spend.draws import EventDraws
from control.resources.spend.overruns import OverrunReason
from control.resources.training.download_links import LinkSealer
from control.resources.training.metrics import JobMetrics
from control.resources.training.output import JobOutput
from control.resources.training_hosts.node_samples import NodeSamples
from control.resources.uploads.downloads import ArtifactLinkSealer
from control.resources.uploads.grants import GrantSealer
from control.resources.uploads.removal import remove_unheld
from control.resources.webhook_messages import outbox
from control.resources.webhook_sender import SenderOptions, WebhookSender
from control.retention import RetentionDays, delete_old_records
from control.settings import Settings
from control.throttle import Throttle
from runtime.background import cancelled, running
from runtime.http.console_looks import look_mark
from runtime.http.known_callers import recognise_callers
from runtime.http.server import FrontLimits
from runtime.log_lines import OutageLog
from runtime.redis.routed import RoutedRedis
from runtime.secret_keys import services_of

if TYPE_CHECKING:
    from control.edges.telemetry.tracing import ControlTracing

_HOUSEKEEPING_S = 3600.0
_FIRST_HOUSEKEEPING_S = 60.0
"""The delay of the first housekeeping: short, so that a control plane that restarts often still cleans up."""
_MIGRATION_RETRY_S = 1.0
LEASE_TIMEOUTS = 3
"""The time for which one process leases a webhook message, in multiples of the receiver's timeout."""
MIDDLEWARES = (observability.count_answers, render_problems, recognise_callers, refuse_compressed_bodies)
LIMITS = FrontLimits(max_target_bytes=65_536)
"""Limits of the listener. A query may name a thousand API keys, hence the long target."""


class _Sealers(TypedDict):
    """The parts that seal tokens."""

    links: LinkSealer
    usage_links: UsageLinkSealer
    grants: GrantSealer
    artifact_links: ArtifactLinkSealer


Lifetime = Callable[[web.Application], AsyncIterator[None]]
Work = Callable[[Dependencies], Coroutine[Any, Any, None]]
log = logging.getLogger(__name__)

OPERATIONS: tuple[Operation, ...] = (
    *endpoints.OPERATIONS,
    *groups.OPERATIONS,
    *federated_keys.OPERATIONS,
    *key_spend.OPERATIONS,
    *keys.OPERATIONS,
    *secrets.OPERATIONS,
    *provider.OPERATIONS,
    *models.OPERATIONS,
    *deployments.OPERATIONS,
    *deployment_actions.OPERATIONS,
    *deployment_logs.OPERATIONS,
    *environments.OPERATIONS,
    *promotions.OPERATIONS,
    *settings_calls.OPERATIONS,
    *teams.OPERATIONS,
    *graphql.OPERATIONS,
    *users.OPERATIONS,
    *signing_secrets.OPERATIONS,
    *events.OPERATIONS,
    *usage.OPERATIONS,
    *group_spend.OPERATIONS,
    *balances.OPERATIONS,
    *usage_report.OPERATIONS,
    *usage_links.OPERATIONS,
    *prices.OPERATIONS,
    *traffic.OPERATIONS,
    *requests.OPERATIONS,
    *gateway_health.OPERATIONS,
    *matches.OPERATIONS,
    *all_keys.OPERATIONS,
    *webhooks.OPERATIONS,
    *projects.OPERATIONS,
    *jobs.OPERATIONS,
    *sessions.OPERATIONS,
    *job_logs.OPERATIONS,
    *job_metrics.OPERATIONS,
    *checkpoints.OPERATIONS,
    *upload_credentials.OPERATIONS,
    *downloads.OPERATIONS,
    *search.OPERATIONS,
    *instance_types.OPERATIONS,
    *queue_context.OPERATIONS,
    *gpu_capacity.OPERATIONS,
    *audit_events.OPERATIONS,
)
"""Every operation of the management API: each file in `control/api` adds its own list here."""


def build(settings: Settings) -> web.Application:
    """Build the control plane with these settings. It migrates the database when it starts."""
    clock = EventClock()
    metrics = Metrics()
    tracing = _tracing(settings, metrics)
    outermost = () if tracing is None else (tracing.middleware,)
    app = web.Application(middlewares=(*outermost, *MIDDLEWARES), client_max_size=MAX_BODY_BYTES)
    redis = connect(settings.redis_url) if settings.redis_url else None
    hints = HintPublisher(redis)
    store = Store.at(settings.database_url, hints.publish)
    reader = EventReader(store, settings.event_holdback_s, clock)
    metrics.watch_event_clock(lambda: clock.behind_s)
    book = LocalLoadBook() if redis is None else RedisLoadBook(redis)
    wake_client = WakeClient(settings.egress_rules, settings.egress_ca_file)
    counters = UsageCounters(redis) if redis is not None else None
    spend = SpendHashes(redis) if redis is not None else None
    sources = None if counters is None or spend is None else FigureSources(counters, spend, spend)
    alerts = AlertWatch(store, sources, metrics.limit_alert)
    wakes = WakeSender(store, wake_client, metrics.wake_hook)
    reports = LoadReports(store, book, wakes)
    app[DEPENDENCIES] = Dependencies(
        settings=settings,
        store=store,
        cursors=CursorSigner(settings.secret_keys),
        throttle=Throttle(RedisWindows(redis) if redis is not None else LocalWindows()),
        names=UpstreamUrlChecker(settings.egress_rules),
        metrics=metrics,
        last_used=LastUsed(store),
        ingest=Ingest(store, settings.event_holdback_s, clock, EventDraws().price, outbox),
        events=reader,
        usage_reports=UsageReports(store, reader, settings.event_retention_days, settings.sums_retention_days),
        hourly_sums=HourlySumMaker(store, reader, settings.event_retention_days),
        readiness=ReadinessChecks(store, settings.secret_keys, RedisProbe(redis) if redis is not None else None),
        deployment_logs=Logs(store, OF_DEPLOYMENTS, _log_bounds(settings)),
        loads=book,
        load_reports=reports,
        training_output=_training_output(store, settings),
        **_sealers(settings.secret_keys),
        checkpoint_store=CheckpointStore(settings.checkpoint_store),
        alerts=alerts,
        policy_pages=internal_snapshot.shared_pages(store),
        older_proxies=OlderProxies(store),
        key_refresher=KeyRefresher(store, IssuerClient(settings.egress_rules, settings.egress_ca_file)),
        counters=counters,
        spend=spend,
        balances=spend,
        inference=InferenceClient.of(settings.proxy_url, look_mark(settings.internal_token)),
        login=LoginProvider.of(settings.login, LoginProviderClient(settings.egress_ca_file), settings.secret_keys),
    )
    _add_routes(app)
    app.on_response_prepare.append(show_request_id)
    app.cleanup_ctx.extend(_metric_export(settings, metrics))
    app.cleanup_ctx.extend([_redis(redis, hints), _database, _secret_keys, _last_used, *_background()])
    app.cleanup_ctx.extend([_webhooks, _provider_keys, _load_reports(reports, wakes, wake_client)])
    if spend is not None:
        app.cleanup_ctx.append(_spend_counting(partial(SpendCounting, store, reader, spend, alerts.note), metrics))
    app.on_cleanup.append(_close_clients)
    if tracing is not None:
        app.on_cleanup.append(tracing.close)
    return app


def _sealers(keys: Sequence[bytes]) -> "_Sealers":
    return {
        "links": LinkSealer(keys),
        "usage_links": UsageLinkSealer(keys),
        "grants": GrantSealer(keys),
        "artifact_links": ArtifactLinkSealer(keys),
    }


def _add_routes(app: web.Application) -> None:
    app[TERMINALS] = Terminals()
    app.on_shutdown.append(terminal_sockets.close_terminals)
    operations = endpoints.with_names(OPERATIONS, app[DEPENDENCIES].settings.provider_names)
    mount(app, operations)
    internal = (*internal_snapshot.ROUTES, *internal_events.ROUTES, *internal_deployments.ROUTES)
    internal += (*internal_training.ROUTES, *internal_traffic.ROUTES, *internal_machines.ROUTES)
    internal += (*internal_requests.ROUTES, *internal_refresh.ROUTES)
    browsers = (*pages.ROUTES, *terminal_sockets.ROUTES, *checkpoint_files.ROUTES, *objects.ROUTES)
    browsers += (*downloads.ROUTES, *console_pages.ROUTES, *console_sessions.ROUTES, *usage_page.ROUTES, *relay.ROUTES)
    browsers += (*usage_requests.ROUTES, *usage_statements.ROUTES, *people_login.ROUTES)
    described = (*description_routes(operations), *inference_routes(app[DEPENDENCIES].settings.proxy_url))
    for routes in (health.ROUTES, internal, observability.ROUTES, described, browsers):
        app.router.add_routes(routes)


def _tracing(settings: Settings, metrics: Metrics) -> "ControlTracing | None":
    if settings.traces is None:
        return None
    # Imported here, because a process without traces must not pay for what it does not use.
    from control.edges.telemetry.tracing import ControlTracing

    return ControlTracing(settings.traces, metrics)


def _metric_export(settings: Settings, metrics: Metrics) -> Sequence[Lifetime]:
    if settings.metric_export is None:
        return ()
    # Imported here, because a process that sends no metrics must not pay for what it does not use.
    from control.edges.telemetry.metric_export import ControlMetricExport

    return (ControlMetricExport(settings.metric_export, metrics, settings.port).lifetime,)


def _log_bounds(settings: Settings) -> LogBounds:
    return LogBounds(
        max_lines=int(settings.deployment_log_max_lines),
        max_bytes=int(settings.deployment_log_max_bytes),
        retention_days=settings.deployment_log_retention_days,
    )


def _training_output(store: Store, settings: Settings) -> JobOutput:
    return JobOutput(store, Logs(store, OF_TRAINING_JOBS, _log_bounds(settings)), JobMetrics(store))


def _redis(redis: RoutedRedis | None, hints: HintPublisher) -> Lifetime:
    async def life(_app: web.Application) -> AsyncIterator[None]:
        await hints.start()
        yield
        await hints.close()
        if redis is not None:
            await redis.aclose()

    return life


async def _database(app: web.Application) -> AsyncIterator[None]:
    """Migrate, then serve. Retries an unreachable database, so control may start before it."""
    store = app[DEPENDENCIES].store
    try:
        await _migrate(store)
        yield
    finally:
        await store.close()


async def _migrate(store: Store) -> None:
    outage = OutageLog(log)
    while True:
        try:
            await migrate(store.engine)
            await add_days(store)
        except DatabaseUnavailableError as error:
            outage.begins(
                f"Database is not reachable: {error.reason}. Retrying every {_MIGRATION_RETRY_S:.0f} s. Check"
                " TOLLGATE_DATABASE_URL and the server."
            )
            await asyncio.sleep(_MIGRATION_RETRY_S)
        else:
            outage.ends("Database is reachable again.")
            return


async def _secret_keys(app: web.Application) -> AsyncIterator[None]:
    keys = app[DEPENDENCIES].settings.secret_keys
    async with running(KeyNotes(app[DEPENDENCIES].store, keys).note_for_ever, *services_of(keys)):
        yield


async def _last_used(app: web.Application) -> AsyncIterator[None]:
    last_used = app[DEPENDENCIES].last_used
    task = asyncio.create_task(last_used.write_periodically())
    yield
    await cancelled(task)
    await last_used.write()


def _background() -> Sequence[Lifetime]:
    """The lifetimes of work that goes on until control stops."""
    works: tuple[Work, ...] = (
        _clean_up_for_ever,
        lambda parts: collect_when_idle(parts.turns),
        lambda parts: parts.hourly_sums.make_for_ever(),
        lambda parts: PricePublisher(parts.store).publish_for_ever(),
        lambda parts: parts.alerts.run(),
    )

    def lifetime(work: Work) -> Lifetime:
        async def life(app: web.Application) -> AsyncIterator[None]:
            task = asyncio.create_task(work(app[DEPENDENCIES]))
            yield
            await cancelled(task)

        return life

    return [lifetime(work) for work in works]


async def _webhooks(app: web.Application) -> AsyncIterator[None]:
    dependencies = app[DEPENDENCIES]
    settings = dependencies.settings
    client = WebhookClient(settings.egress_rules, settings.webhook_timeout_s, settings.egress_ca_file)
    options = SenderOptions(
        poll_interval_s=settings.webhook_poll_interval_s,
        lease_ms=int(settings.webhook_timeout_s * 1000 * LEASE_TIMEOUTS),
        retry_for_ms=int(settings.webhook_retry_for_s * 1000),
    )
    sender = WebhookSender(
        dependencies.store, client, settings.secret_keys, dependencies.metrics.webhook_delivery, options
    )
    task = asyncio.create_task(sender.run())
    yield
    await cancelled(task)
    await client.close()


async def _provider_keys(app: web.Application) -> AsyncIterator[None]:
    refresher = app[DEPENDENCIES].key_refresher
    async with running(refresher.run):
        yield
    await refresher.close()


def _load_reports(reports: LoadReports, wakes: WakeSender, client: WakeClient) -> Lifetime:
    async def life(_app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(reports.write_periodically())
        yield
        await cancelled(task)
        await reports.write()
        await wakes.close()
        await client.close()

    return life


def _spend_counting(make: Callable[[Callable[[str], None]], SpendCounting], metrics: Metrics) -> Lifetime:
    counting = make(metrics.spend_overrun)
    metrics.watch_spend_counting(lambda: counting.lag_s, OverrunReason)

    async def life(_app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(counting.run())
        yield
        await cancelled(task)

    return life


async def _close_clients(app: web.Application) -> None:
    for client in (app[DEPENDENCIES].inference, app[DEPENDENCIES].login):
        if client is not None:
            await client.close()


def _retention(settings: Settings) -> RetentionDays:
    return RetentionDays(
        events=settings.event_retention_days,
        sums=settings.sums_retention_days,
        audit=settings.audit_retention_days,
        requests=settings.request_retention_days,
        most_requests=int(settings.request_max_rows),
    )


async def _clean_up_for_ever(dependencies: Dependencies) -> None:
    store = dependencies.store
    settings = dependencies.settings
    await asyncio.sleep(_FIRST_HOUSEKEEPING_S)
    while True:
        try:
            await policy_feed.delete_old_tombstones(store, settings.tombstone_retention_s)
            await add_days(store)
            await delete_old_records(store, _retention(settings))
            await UnsentMetadata(store, dependencies.events).delete()
            await dependencies.deployment_logs.prune()
            await dependencies.training_output.prune()
            await remove_unheld(store, dependencies.checkpoint_store)
            await NodeSamples(store).prune()
            if dependencies.counters is not None:
                await dependencies.counters.prune_markers()
        except (DatabaseUnavailableError, UsageUnavailableError) as error:
            reason = error.reason if isinstance(error, DatabaseUnavailableError) else error.message
            log.warning(
                "Clean-up of old records skipped (%s); retrying in %.0f s. Check the database and Redis.",
                *(reason, _HOUSEKEEPING_S),
            )
        except Exception:  # a bug must not end all clean-up
            log.exception(
                "Clean-up of old records failed; retrying in %.0f s. Please report this bug.", _HOUSEKEEPING_S
            )
        await asyncio.sleep(_HOUSEKEEPING_S)
