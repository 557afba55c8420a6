"""Control's Prometheus metrics: one registry per control plane, nothing global."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.metrics_text import ALL_WORKSPACES, rendered
from runtime.tls.files import CERTIFICATE_END_TEXT, CertificateFiles

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Control's metrics. Labels are route templates, never paths, whose ids would be unbounded."""

    def __init__(self, certificate: CertificateFiles | None = None) -> None:
        self.registry = CollectorRegistry()
        if certificate is not None:
            Gauge(
                "tollgate_tls_certificate_not_after_seconds", f"{CERTIFICATE_END_TEXT}.", registry=self.registry
            ).set_function(lambda: certificate.pair.ends_at_s)
        self.exemplar: Callable[[], dict[str, str] | None] = lambda: None
        """A function that returns the labels of the call that is being counted; None if it has no trace."""
        self._answers = Counter(
            "tollgate_control_requests_total",
            "Answers of the management API.",
            ("method", "route", "status_code"),
            registry=self.registry,
        )
        self._durations = Histogram(
            "tollgate_control_request_duration_seconds",
            "Time to answer a request to the management API.",
            ("method", "route"),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._limit_alerts = Counter(
            "tollgate_limit_alerts_total", "Alerts on limits, by type of message.", ["type"], registry=self.registry
        )
        self._webhook_deliveries = Counter(
            "tollgate_webhook_deliveries_total",
            "Attempts to deliver a webhook message: delivered, failed (to be tried again) or dead (given up).",
            ("outcome",),
            registry=self.registry,
        )
        self._wake_hooks = Counter(
            "tollgate_wake_hooks_total",
            "Calls of deployments' wake hooks: answered (a 2xx) or failed (to be tried again).",
            ("outcome",),
            registry=self.registry,
        )
        self._training_jobs = Counter(
            "tollgate_training_jobs_total",
            "How often training jobs came to a status.",
            ("status",),
            registry=self.registry,
        )
        self._training_output_dropped = Counter(
            "tollgate_training_output_dropped_total",
            "Lines and metric points dropped: of training jobs that are gone, or with too many metrics.",
            ("kind",),
            registry=self.registry,
        )

        synced = ("tollgate_training_checkpoints_total", "How often training checkpoints came to a sync status.")
        self._training_checkpoints = Counter(*synced, ("sync_status",), registry=self.registry)
        self._training_backend_up = Gauge(
            "tollgate_training_backend_up",
            "Whether the training backend is there: 1, or 0.",
            registry=self.registry,
        )
        self._training_unfinished_jobs = Gauge(
            "tollgate_training_unfinished_jobs",
            "Training jobs that have not ended, by status.",
            ("status",),
            registry=self.registry,
        )

    def watch_event_clock(self, behind_s: Callable[[], float]) -> None:
        Gauge(
            "tollgate_event_clock_behind_seconds",
            "How far the database's clock is behind its own latest: events wait for it to catch up.",
            registry=self.registry,
        ).set_function(behind_s)

    def watch_spend_counting(self, lag_s: Callable[[], float], overrun_reasons: Iterable[str]) -> None:
        self._spend_overruns = Counter(
            "tollgate_spend_overrun_total",
            "HARD spend limits above whose amount more is spent, once per window, by the reason.",
            ("reason",),
            registry=self.registry,
        )
        for reason in overrun_reasons:  # so that the first one is an increase
            self._spend_overruns.labels(reason)
        Gauge(
            "tollgate_spend_counting_lag_seconds",
            "How far counting what groups spend is behind. The holdback is a part of it.",
            registry=self.registry,
        ).set_function(lag_s)

    def spend_overrun(self, reason: str) -> None:
        """Count a HARD spend limit above whose amount more is spent."""
        self._spend_overruns.labels(reason).inc()

    def watch_spans(self, totals: Callable[[], Mapping[str, int]]) -> None:
        self.registry.register(_Spans(totals))

    def limit_alert(self, message_type: str) -> None:
        self._limit_alerts.labels(message_type).inc()

    def webhook_delivery(self, outcome: str) -> None:
        self._webhook_deliveries.labels(outcome).inc()

    def wake_hook(self, outcome: str) -> None:
        self._wake_hooks.labels(outcome).inc()

    def training_jobs_entered(self, statuses: Iterable[str]) -> None:
        for status in statuses:
            self._training_jobs.labels(status).inc()

    def training_checkpoints_entered(self, sync_statuses: Iterable[str]) -> None:
        for sync_status in sync_statuses:
            self._training_checkpoints.labels(sync_status).inc()

    def training_output_dropped(self, kind: str, count: int) -> None:
        self._training_output_dropped.labels(kind).inc(count)

    def show_training(self, is_up: bool, unfinished: Mapping[str, int]) -> None:
        """Set the gauges of training. `unfinished`: the number of jobs, by status."""
        self._training_backend_up.set(is_up)
        for status, count in unfinished.items():
            self._training_unfinished_jobs.labels(status).set(count)

    def answered(self, method: str, route: str, status: int, duration_s: float) -> None:
        self._answers.labels(method, route, str(status)).inc()
        self._durations.labels(method, route).observe(duration_s, self.exemplar())

    def text(self, accept: str = "", workspace: str = ALL_WORKSPACES) -> tuple[bytes, str]:
        """The metrics of one workspace or of all, and their content type, as an Accept field wants them."""
        return rendered(self.registry, accept, workspace)


class _Spans(Collector):
    def __init__(self, totals: Callable[[], Mapping[str, int]]) -> None:
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        about = "Spans by what became of them: exported, failed (not taken by the collector), dropped (queue full)"
        family = CounterMetricFamily("tollgate_trace_spans", about, labels=["outcome"])
        for outcome, count in self._totals().items():
            family.add_metric([outcome], count)
        yield family
