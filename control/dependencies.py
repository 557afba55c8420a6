"""The parts of one running control plane that the management API's handlers use, made once in `control.app`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from control.edges.checkpoint_store import CheckpointStore
from control.edges.inference_client import InferenceClient
from control.edges.name_resolution import UpstreamUrlChecker
from control.edges.redis.usage_counters import UsageCounters
from control.edges.sql.events.ingest import Ingest
from control.edges.sql.last_used import LastUsed
from control.edges.sql.store import Store
from control.edges.telemetry.metrics import Metrics
from control.readiness import ReadinessChecks
from control.resources.alerts.watch import AlertWatch
from control.resources.billing.hourly_sums import HourlySumMaker
from control.resources.billing.usage_report import UsageReports
from control.resources.billing_events import EventReader
from control.resources.console.call_places import CallPlaces
from control.resources.console.login.provider import LoginProvider
from control.resources.console.usage_links import UsageLinkSealer
from control.resources.cursors import CursorSigner
from control.resources.identity.refreshing import KeyRefresher
from control.resources.logs import Logs
from control.resources.platform.load_reports import LoadReports
from control.resources.platform.loads import LoadBook
from control.resources.policy_feed import FeedReader, OlderProxies
from control.resources.spend.balance_source import BalanceSource
from control.resources.spend.group_spend import SpendSource
from control.resources.training.download_links import LinkSealer
from control.resources.training.output import JobOutput
from control.resources.uploads.downloads import ArtifactLinkSealer
from control.resources.uploads.grants import GrantSealer
from control.settings import Settings
from control.shared_work import SharedWork
from control.throttle import Throttle
from control.workspace_turns import WorkspaceTurns
from runtime.shares.places import Places

__all__ = ["Dependencies", "Store"]
MAX_DOWNLOADS = 64
"""The most downloads of checkpoint files at once, in one process."""
MAX_UPLOADS = 64
"""The most requests with a part of an upload at once, in one process."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """`counters`, `spend`, `balances`: None without a Redis; usage is 0 then, because nothing counts. `inference`: None
    without a URL. `login`: None if people log in with keys alone."""

    settings: Settings
    store: Store
    cursors: CursorSigner
    throttle: Throttle
    names: UpstreamUrlChecker
    metrics: Metrics
    last_used: LastUsed
    ingest: Ingest
    events: EventReader
    usage_reports: UsageReports
    hourly_sums: HourlySumMaker
    readiness: ReadinessChecks
    deployment_logs: Logs
    loads: LoadBook
    load_reports: LoadReports
    training_output: JobOutput
    links: LinkSealer
    usage_links: UsageLinkSealer
    grants: GrantSealer
    artifact_links: ArtifactLinkSealer
    checkpoint_store: CheckpointStore
    alerts: AlertWatch
    policy_pages: SharedWork[FeedReader, Sequence[bytes]]
    older_proxies: OlderProxies
    key_refresher: KeyRefresher
    counters: UsageCounters | None = None
    spend: SpendSource | None = None
    balances: BalanceSource | None = None
    inference: InferenceClient | None = None
    login: LoginProvider | None = None
    turns: WorkspaceTurns = field(default_factory=WorkspaceTurns)
    key_turns: WorkspaceTurns = field(default_factory=lambda: WorkspaceTurns(1))
    """Turns of requests with the same idempotency key."""
    call_places: CallPlaces = field(default_factory=CallPlaces)
    downloads: Places = field(default_factory=lambda: Places(MAX_DOWNLOADS, "downloads of checkpoint files"))
    uploads: Places = field(default_factory=lambda: Places(MAX_UPLOADS, "parts of uploads"))
