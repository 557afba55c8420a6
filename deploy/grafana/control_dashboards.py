"""Dashboards of control's work, and of what becomes of platform models and asynchronous requests."""

from deploy.grafana.panels import RATE, Dashboard, Variable, panel, quantiles

CONTROL = Dashboard(
    "tollgate-control",
    "Tollgate: control, webhooks, training",
    (),
    (
        (
            "Management API",
            (
                panel(
                    "Requests by status",
                    "reqps",
                    "The proxies' own requests included (/internal/).",
                    (f"sum by (status_code) (rate(tollgate_control_requests_total[{RATE}]))", "{{status_code}}"),
                ),
                panel(
                    "Slowest routes",
                    "s",
                    "p99 of the five slowest.",
                    (
                        "topk(5, histogram_quantile(0.99, sum by (le, method, route) "
                        f"(rate(tollgate_control_request_duration_seconds_bucket[{RATE}]))))",
                        "{{method}} {{route}}",
                    ),
                ),
                panel(
                    "The database's clock",
                    "s",
                    "How far it is behind its own latest: events wait for it.",
                    ("max(tollgate_event_clock_behind_seconds)", "behind"),
                ),
                panel(
                    "Counting what groups spend",
                    "s",
                    "How far it is behind, the holdback with it. 0 without spend limits.",
                    ("min(tollgate_spend_counting_lag_seconds)", "behind"),
                ),
                panel(
                    "HARD spend limits exceeded",
                    "short",
                    "Once per window, by the reason. Calls that cost more than was reserved: see the proxy.",
                    (
                        f'sum by (reason) (increase(tollgate_spend_overrun_total{{reason!="provider"}}[{RATE}]))',
                        "{{reason}}",
                    ),
                ),
                panel(
                    "Processes",
                    "short",
                    "1: can be scraped.",
                    ('up{job=~"tollgate-.*"}', "{{job}} {{instance}}"),
                ),
            ),
        ),
        (
            "Webhooks, wake hooks, traces",
            (
                panel(
                    "Deliveries of webhooks, alerts on limits",
                    "ops",
                    "failed: tried again. dead: given up after three days. LIMIT_…: alerts, once for all webhooks.",
                    (f"sum by (outcome) (rate(tollgate_webhook_deliveries_total[{RATE}]))", "{{outcome}}"),
                    (f"sum by (type) (rate(tollgate_limit_alerts_total[{RATE}]))", "{{type}}"),
                ),
                panel(
                    "Wake hooks",
                    "ops",
                    "failed: tried again.",
                    (f"sum by (outcome) (rate(tollgate_wake_hooks_total[{RATE}]))", "{{outcome}}"),
                ),
                panel(
                    "Spans and metrics for the OTLP collector",
                    "ops",
                    "If they are on. failed: the collector did not take them. dropped: too many spans waited.",
                    (f"sum by (job, outcome) (rate(tollgate_trace_spans_total[{RATE}]))", "{{job}} spans {{outcome}}"),
                    (
                        f"sum by (job, outcome) (rate(tollgate_metric_exports_total[{RATE}]))",
                        "{{job}} exports {{outcome}}",
                    ),
                ),
            ),
        ),
        (
            "Training",
            (
                panel(
                    "Jobs that have not ended",
                    "short",
                    "CREATED and PENDING are the queue.",
                    ("max by (status) (tollgate_training_unfinished_jobs)", "{{status}}"),
                    ("max(tollgate_training_backend_up)", "backend is there"),
                ),
                panel(
                    "Ends, checkpoints and dropped output",
                    "ops",
                    "Drops: output of jobs that are gone.",
                    (f"sum by (status) (rate(tollgate_training_jobs_total[{RATE}]))", "{{status}}"),
                    (
                        f"sum by (sync_status) (rate(tollgate_training_checkpoints_total[{RATE}]))",
                        "checkpoints {{sync_status}}",
                    ),
                    (f"sum by (kind) (rate(tollgate_training_output_dropped_total[{RATE}]))", "dropped {{kind}}"),
                ),
            ),
        ),
    ),
)

DEPLOYMENT = 'model_id=~"$model_id"'
MODELS = Dashboard(
    "tollgate-models",
    "Tollgate: platform models and asynchronous requests",
    (Variable("model_id", "tollgate_deployment_in_flight_requests"),),
    (
        (
            "Replicas",
            (
                panel(
                    "Calls at replicas",
                    "short",
                    "By deployment. Queued: no replica has room. Parked: none is ready.",
                    (
                        f"sum by (deployment_id) (tollgate_deployment_in_flight_requests{{{DEPLOYMENT}}})",
                        "{{deployment_id}} in flight",
                    ),
                    (
                        f"sum by (deployment_id) (tollgate_deployment_queued_requests{{{DEPLOYMENT}}})",
                        "{{deployment_id}} queued",
                    ),
                    (
                        f"sum by (deployment_id) (tollgate_deployment_parked_requests{{{DEPLOYMENT}}})",
                        "{{deployment_id}} parked",
                    ),
                ),
                panel(
                    "Health probes",
                    "ops",
                    "TollgateReplicasUnhealthy fires when half of a machine's are not good.",
                    (f"sum by (outcome) (rate(tollgate_replica_probes_total[{RATE}]))", "{{outcome}}"),
                ),
            ),
        ),
        (
            "Asynchronous requests",
            (
                panel(
                    "Queued and in progress",
                    "short",
                    "All machines share the queue and export the same figures.",
                    (
                        f"max by (deployment_id, priority) (tollgate_async_queued{{{DEPLOYMENT}}})",
                        "{{deployment_id}} priority {{priority}}",
                    ),
                    (
                        f"max by (deployment_id) (tollgate_async_in_progress{{{DEPLOYMENT}}})",
                        "{{deployment_id}} in progress",
                    ),
                ),
                panel(
                    "The oldest that is queued",
                    "s",
                    "TollgateAsyncQueueStuck fires at 300 s.",
                    (
                        f"max by (deployment_id) (tollgate_async_oldest_queued_seconds{{{DEPLOYMENT}}})",
                        "{{deployment_id}}",
                    ),
                ),
                panel(
                    "Ends",
                    "ops",
                    "EXPIRED: no replica in time. WEBHOOK_FAILED: the result could not be delivered.",
                    (f"sum by (status) (rate(tollgate_async_requests_total{{{DEPLOYMENT}}}[{RATE}]))", "{{status}}"),
                ),
                panel(
                    "Attempts and deliveries",
                    "ops",
                    "again: another attempt follows. lost: its worker died.",
                    (f"sum by (outcome) (rate(tollgate_async_attempts_total[{RATE}]))", "attempt {{outcome}}"),
                    (
                        f"sum by (outcome) (rate(tollgate_async_webhook_deliveries_total[{RATE}]))",
                        "webhook {{outcome}}",
                    ),
                ),
                panel(
                    "Time in the queue",
                    "s",
                    "From acceptance to the first attempt.",
                    *quantiles("tollgate_async_time_in_queue_seconds", ""),
                ),
                panel(
                    "Duration of an attempt",
                    "s",
                    "From an attempt's start to its end.",
                    *quantiles("tollgate_async_attempt_seconds", ""),
                ),
            ),
        ),
    ),
)
