"""The parts of a dashboard. `generate.py` makes Grafana's JSON of it."""

from dataclasses import dataclass

RATE = "$__rate_interval"
PROXIES = 'instance=~"$instance"'


@dataclass(frozen=True)
class Query:
    """One PromQL expression; `legend` names its series by their labels, such as `{{instance}}`."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A graph. `about` says what it means and when to worry. `unit` is Grafana's name of one, such as `reqps`."""

    title: str
    unit: str
    about: str
    queries: tuple[Query, ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values of a label of a metric."""

    name: str
    metric: str


@dataclass(frozen=True)
class Dashboard:
    """`rows`: title and panels of each row. `uid` is the file's name and the dashboard's address in Grafana."""

    uid: str
    title: str
    variables: tuple[Variable, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def panel(title: str, unit: str, about: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, unit, about, tuple(Query(*query) for query in queries))


def quantiles(metric: str, selector: str) -> tuple[tuple[str, str], ...]:
    """The median and the 99th percentile of a histogram."""
    sums = f"sum by (le) (rate({metric}_bucket{{{selector}}}[{RATE}]))"
    return tuple((f"histogram_quantile({share}, {sums})", name) for share, name in ((0.5, "p50"), (0.99, "p99")))
