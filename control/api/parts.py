"""What handlers may reach, made once in `control.app` and handed to each through its `Call`."""

from dataclasses import dataclass, field

from aiohttp import web

from control.api.pages import Pages
from control.edges.counters import UsageCounters
from control.edges.ingest import Ingest
from control.edges.last_used import LastUsed
from control.edges.metrics import Metrics
from control.edges.names import UpstreamNames
from control.edges.store import Store
from control.pace import Turns
from control.readiness import Readiness
from control.settings import Settings
from control.statements import Statements
from control.throttle import Throttle


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
