"""Dashboards of the proxies' work: for all callers together, and by workspace, slug and group."""

from deploy.grafana.panels import PROXIES, RATE, Dashboard, Variable, panel, quantiles

TENANT = 'workspace=~"$workspace", model_slug=~"$model_slug"'
CALLS = f"platform_model_api_inference_requests_total{{{PROXIES}}}"
ERRORS = f'platform_model_api_inference_requests_total{{{PROXIES}, status_code=~"5.."}}'
PROXY = Dashboard(
    "tollgate-proxy",
    "Tollgate: calls",
    (Variable("instance", "tollgate_inflight_requests"),),
    (
        (
            "What callers notice",
            (
                panel(
                    "Calls by status",
                    "reqps",
                    "All calls, refused ones included. 429: a limit. 529: no room.",
                    (f"sum by (status_code) (rate({CALLS}[{RATE}]))", "{{status_code}}"),
                ),
                panel(
                    "Share of 5xx",
                    "percentunit",
                    "TollgateServerErrors fires at 5 %.",
                    (f"sum(rate({ERRORS}[{RATE}])) / sum(rate({CALLS}[{RATE}]))", "5xx"),
                ),
                panel(
                    "Duration",
                    "s",
                    "From a call's head to its answer's end: mostly the upstream's time.",
                    *quantiles("tollgate_request_duration_seconds", PROXIES),
                ),
                panel(
                    "Time to first byte",
                    "s",
                    "From a call's head to the first byte of its answer.",
                    *quantiles("tollgate_time_to_first_byte_seconds", PROXIES),
                ),
            ),
        ),
        (
            "What the gateway adds",
            (
                panel(
                    "Overhead",
                    "s",
                    "Time that was the gateway's own. TollgateOverheadHigh fires at a p99 of 100 ms.",
                    *quantiles("tollgate_overhead_seconds", PROXIES),
                ),
                panel(
                    "Admission in Redis",
                    "s",
                    "One round trip. Above TOLLGATE_REDIS_TIMEOUT_S calls are answered 503.",
                    *quantiles("tollgate_redis_round_trip_seconds", PROXIES),
                ),
                panel(
                    "Calls in flight and parked",
                    "short",
                    "Parked calls wait for a replica.",
                    (f"sum by (instance) (tollgate_inflight_requests{{{PROXIES}}})", "{{instance}} in flight"),
                    (f"sum by (instance) (tollgate_parked_requests{{{PROXIES}}})", "{{instance}} parked"),
                ),
                panel(
                    "Bytes held",
                    "bytes",
                    "Requests and unstreamed answers in memory.",
                    (f"sum by (instance) (tollgate_held_bytes{{{PROXIES}}})", "{{instance}}"),
                ),
            ),
        ),
        (
            "Limits and capacity",
            (
                panel(
                    "Decisions of limits",
                    "ops",
                    "unavailable: Redis did not decide in time, the call was 503.",
                    (
                        f"sum by (outcome) (rate(tollgate_limit_decisions_total{{{PROXIES}}}[{RATE}]))",
                        "{{outcome}}",
                    ),
                    (f"sum(rate(tollgate_local_limit_decisions_total{{{PROXIES}}}[{RATE}]))", "without Redis"),
                ),
                panel(
                    "Steps of Redis' clock",
                    "short",
                    "A limit goes on after a step; a day may count calls of the next or of the one before.",
                    (
                        f"sum by (instance) (increase(tollgate_redis_clock_jumps_total{{{PROXIES}}}[{RATE}]))",
                        "{{instance}}",
                    ),
                ),
                panel(
                    "Refusals by limit",
                    "ops",
                    "Calls that a limit (429) or a prepaid balance (402) refused, by its type and unit.",
                    (
                        "sum by (type, unit) (rate("
                        f'tollgate_limit_decisions_total{{{PROXIES}, outcome="refused"}}[{RATE}]))',
                        "{{type}} {{unit}}",
                    ),
                ),
                panel(
                    "Tokens beyond reservations",
                    "ops",
                    "What calls cost beyond the most that was reserved for them: output above the assumed cap.",
                    (f"sum(rate(tollgate_reservation_overrun_tokens_total{{{PROXIES}}}[{RATE}]))", "tokens a second"),
                ),
                panel(
                    "Calls beyond hard spend limits",
                    "short",
                    "They cost more than was reserved for them, so a limit may be passed. provider: reported so.",
                    (
                        f"sum by (reason) (increase(tollgate_spend_overrun_total{{{PROXIES}}}[{RATE}]))",
                        "{{reason}}",
                    ),
                ),
                panel(
                    "Calls shed",
                    "ops",
                    "529. worker: add machines. workspace, group: one caller used its share.",
                    (
                        f"sum by (resource, scope) (rate(tollgate_shed_requests_total{{{PROXIES}}}[{RATE}]))",
                        "{{resource}} {{scope}}",
                    ),
                ),
                panel(
                    "Age of the policy",
                    "s",
                    "Since control last confirmed it. TollgateSnapshotStale fires at 300 s.",
                    (f"max by (instance) (tollgate_snapshot_age_seconds{{{PROXIES}}})", "{{instance}}"),
                ),
                panel(
                    "Certificates end in",
                    "s",
                    "The certificate that callers see, with TLS. TollgateCertificateEnds fires a week before.",
                    (
                        f"min by (instance) (tollgate_tls_certificate_not_after_seconds{{{PROXIES}}}) - time()",
                        "{{instance}}",
                    ),
                ),
                panel(
                    "Calls missing from the list of requests",
                    "ops",
                    "Control was away, or took them too slowly. Events and traffic have them.",
                    (f"sum by (instance) (rate(tollgate_unlisted_calls_total{{{PROXIES}}}[{RATE}]))", "{{instance}}"),
                ),
            ),
        ),
        (
            "On the way to the bill",
            (
                panel(
                    "Events not confirmed",
                    "short",
                    "Falls between scrapes while control takes them.",
                    (f"sum by (instance) (tollgate_journal_pending_events{{{PROXIES}}})", "{{instance}}"),
                    (f"sum by (instance) (tollgate_journal_resent_events{{{PROXIES}}})", "{{instance}} sent again"),
                ),
                panel(
                    "Journals in trouble",
                    "short",
                    "Anything above 0 has an alert and a runbook.",
                    (f"sum by (instance) (tollgate_journal_troubled_workers{{{PROXIES}}})", "{{instance}} refusing"),
                    (f"sum by (instance) (tollgate_journal_damaged_places{{{PROXIES}}})", "{{instance}} damaged"),
                    (f"sum by (instance) (tollgate_journal_rejected_events{{{PROXIES}}})", "{{instance}} rejected"),
                ),
                panel(
                    "Kept for a restore",
                    "bytes",
                    "Committed events that are sent again to a restored database.",
                    (f"sum by (instance) (tollgate_journal_retained_bytes{{{PROXIES}}})", "{{instance}}"),
                ),
                panel(
                    "Calls billed by estimate",
                    "ops",
                    "missing: caller or upstream left. rejected: nonsense reported.",
                    (
                        f"sum by (reason) (rate(tollgate_usage_not_reported_total{{{PROXIES}}}[{RATE}]))",
                        "{{reason}}",
                    ),
                ),
            ),
        ),
    ),
)

TENANT_CALLS = f"platform_model_api_inference_requests_total{{{TENANT}}}"
TENANT_TOKENS = f"platform_model_api_tokens_total{{{TENANT}}}"
TENANT_SPEND = f"tollgate_spend_total{{{TENANT}}}"
TENANTS = Dashboard(
    "tollgate-tenants",
    "Tollgate: who calls what",
    (
        Variable("workspace", "platform_model_api_inference_requests_total"),
        Variable("model_slug", "platform_model_api_inference_requests_total"),
    ),
    (
        (
            "Calls",
            (
                panel(
                    "Calls by slug",
                    "reqps",
                    "The ten busiest.",
                    (f"topk(10, sum by (model_slug) (rate({TENANT_CALLS}[{RATE}])))", "{{model_slug}}"),
                ),
                panel(
                    "Calls by group",
                    "reqps",
                    "The ten busiest, by their external id.",
                    (f"topk(10, sum by (external_entity_id) (rate({TENANT_CALLS}[{RATE}])))", "{{external_entity_id}}"),
                ),
                panel(
                    "Share of 5xx by slug",
                    "percentunit",
                    "TollgateEndpointFailing fires at 50 %.",
                    (
                        "sum by (model_slug) (rate(platform_model_api_inference_requests_total"
                        f'{{{TENANT}, status_code=~"5.."}}[{RATE}])) / '
                        f"sum by (model_slug) (rate({TENANT_CALLS}[{RATE}]))",
                        "{{model_slug}}",
                    ),
                ),
                panel(
                    "Refused by limits",
                    "reqps",
                    "Calls answered 429, by group.",
                    (
                        "topk(10, sum by (external_entity_id) (rate(platform_model_api_inference_requests_total"
                        f'{{{TENANT}, status_code="429"}}[{RATE}])))',
                        "{{external_entity_id}}",
                    ),
                ),
            ),
        ),
        (
            "Tokens",
            (
                panel(
                    "Tokens by kind",
                    "short",
                    "A second. The kinds add up to what is billed.",
                    (f"sum by (kind) (rate({TENANT_TOKENS}[{RATE}]))", "{{kind}}"),
                ),
                panel(
                    "Tokens by slug",
                    "short",
                    "A second; the ten largest.",
                    (f"topk(10, sum by (model_slug) (rate({TENANT_TOKENS}[{RATE}])))", "{{model_slug}}"),
                ),
                panel(
                    "Tokens by group",
                    "short",
                    "A second; the ten largest.",
                    (
                        f"topk(10, sum by (external_entity_id) (rate({TENANT_TOKENS}[{RATE}])))",
                        "{{external_entity_id}}",
                    ),
                ),
                panel(
                    "Tokens of the last day by workspace",
                    "short",
                    "The bill is made of events, not of this.",
                    (f"sum by (workspace) (increase({TENANT_TOKENS}[1d]))", "{{workspace}}"),
                ),
            ),
        ),
        (
            "Spend",
            (
                panel(
                    "Spend by slug",
                    "short",
                    "In the hour before; the ten largest. The bill is made of events, not of this.",
                    (
                        f"topk(10, sum by (model_slug, currency) (increase({TENANT_SPEND}[1h])))",
                        "{{model_slug}} {{currency}}",
                    ),
                ),
                panel(
                    "Spend by group",
                    "short",
                    "In the hour before; the ten largest.",
                    (
                        f"topk(10, sum by (external_entity_id, currency) (increase({TENANT_SPEND}[1h])))",
                        "{{external_entity_id}} {{currency}}",
                    ),
                ),
                panel(
                    "Spend of the last day by workspace",
                    "short",
                    "By the prices that were valid when the calls ended.",
                    (f"sum by (workspace, currency) (increase({TENANT_SPEND}[1d]))", "{{workspace}} {{currency}}"),
                ),
                panel(
                    "Calls without a price",
                    "reqps",
                    "They are in no amount: set a price of their slug.",
                    (
                        f"topk(10, sum by (model_slug) (rate(tollgate_unpriced_calls_total{{{TENANT}}}[{RATE}])))",
                        "{{model_slug}}",
                    ),
                ),
            ),
        ),
    ),
)
