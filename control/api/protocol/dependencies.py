"""What handlers may reach, made once in `control.app` and handed to each through its `Call`."""

from dataclasses import dataclass, field

from aiohttp import web

from control.api.protocol.cursors import Pages
from control.edges.name_resolution import UpstreamNames
from control.edges.redis.usage_counters import UsageCounters
from control.edges.sql.events.ingest import Ingest
from control.edges.sql.last_used import LastUsed
from control.edges.sql.store import Store
from control.edges.telemetry.metrics import Metrics
from control.readiness import Readiness
from control.resources.billing_events import Statements
from control.settings import Settings
from control.throttle import Throttle
from control.time_slices import Turns


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one running control plane."""

    settings: Settings
    store: Store
    pages: Pages
    throttle: Throttle
    names: UpstreamNames
    metrics: Metrics
    last_used: LastUsed
    ingest: Ingest
    statements: Statements
    readiness: Readiness
    counters: UsageCounters | None = None
    """None without a Redis: usage is 0 then, for nothing counts."""
    turns: Turns = field(default_factory=Turns)


PARTS = web.AppKey("parts", Parts)
