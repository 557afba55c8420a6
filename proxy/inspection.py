"""The text of `snapshot show`: what a proxy on this machine would do now. Pure: reads a directory, returns lines.

It uses the same look-ups as the stages, so it cannot disagree with them. It shows no secrets, and only a key's prefix.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from policy.credentials import may_call_slugs
from policy.deployments import NOT_SERVING, PARKING, Deployment, Where
from policy.endpoints import MODEL_API
from policy.keys.settings import NO_SETTINGS, KeySettings
from policy.limits.effective import Bound
from policy.limits.tiers import LOWEST_TIER, Tier, find_tier, tier_in_force, tier_plan
from policy.prices import amount_text
from policy.snapshot import EndpointRow, KeyRow, target_to_wire
from policy.spend.effective import SpendBound, SpendPlan
from proxy.directory_values import CallingGroup
from proxy.parts import Directory

DEFAULT_ENVIRONMENT = "production"


@dataclass(frozen=True, slots=True)
class Tiered:
    """The look-ups, and the figures of the model API's tiers as TOLLGATE_MODEL_API_TIERS has them here."""

    directory: Directory
    tiers: Mapping[str, Tier]


def overview(epoch: str, revision: int, rows: Mapping[str, int]) -> Iterator[str]:
    """Yield what the policy replica holds."""
    yield f"revision {revision} of epoch {epoch}"
    yield "rows: " + (", ".join(f"{count} {kind}" for kind, count in sorted(rows.items())) or "none")


def endpoint_lines(tiered: Tiered, slug: str) -> Iterator[str]:
    """Yield where a slug leads; for the model API also what the workspace's tier allows."""
    directory = tiered.directory
    endpoint = directory.endpoint(slug)
    if endpoint is None:
        yield f"{slug}: no such endpoint; every call is answered 404"
        return
    yield f"{slug}: endpoint {endpoint.id} of workspace {endpoint.workspace_id}"
    fields = {name: value for name, value in target_to_wire(endpoint.target).items() if name != "provider"}
    yield f"  target {endpoint.target.provider}: " + ", ".join(f"{name} {value}" for name, value in fields.items())
    yield from _deployment_lines(directory, endpoint)
    yield from _tier_lines(tiered, endpoint)
    yield from _workspace_lines(directory, endpoint.workspace_id)


def key_lines(tiered: Tiered, key: KeyRow, slug: str | None, now_ms: int) -> Iterator[str]:
    """Yield what happens to calls with a key: its state, and the limits that bind for each slug, or for `slug`."""
    directory = tiered.directory
    yield f"key {key.prefix}: {key.kind}, workspace {key.workspace_id}"
    if key.settings is not None:
        yield from _settings_lines(key.settings, now_ms)
    yield from _workspace_lines(directory, key.workspace_id)
    if key.group_id is None or not may_call_slugs(key.kind):
        yield "  a workspace key: calls to slugs are answered 403"
        return
    group = directory.group(key.group_id)
    if group is None:
        yield f"  its group {key.group_id} is gone: calls are answered 403"
        return
    yield from _tree_lines(directory, group)
    if group.spend is not None:
        yield from _spend_lines(group.spend)
    yield from _own_limit_lines(key)
    for name in [slug] if slug is not None else sorted(directory.slugs(group.id)):
        yield from _call_lines(tiered, key, name)


def _own_limit_lines(key: KeyRow) -> Iterator[str]:
    """The key's own limits, which it shares with those of its rotation."""
    settings = key.settings or NO_SETTINGS
    shared = f"set by the key, counted with key {key.bucket}" if key.bucket else "set by the key"
    for limit in settings.rate_limits:
        yield f"  over all slugs at most {limit.threshold} {limit.type} per {limit.unit}, {shared}"
    for own in settings.spend_limits:
        amount = f"{amount_text(own.amount)} {own.currency} per {own.unit} ({own.enforcement})"
        yield f"  over all slugs at most {amount}, {shared}"


def _settings_lines(settings: KeySettings, now_ms: int) -> Iterator[str]:
    """The key's own terms. Which of its slugs it may call, each slug's line says."""
    if settings.disabled:
        yield "  it is disabled: calls are answered 403"
    if settings.expires_at_ms is not None:
        end = datetime.fromtimestamp(settings.expires_at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        is_over = settings.expires_at_ms <= now_ms
        yield f"  it expired at {end}: calls are answered 403" if is_over else f"  it expires at {end}"
    if settings.allowed_ips:
        yield "  it is good for these addresses alone, others are answered 403: " + ", ".join(settings.allowed_ips)


def _workspace_lines(directory: Directory, id: str) -> Iterator[str]:
    workspace = directory.workspace(id)
    if workspace is None:
        yield "  the workspace is not there: calls are answered 403"
    elif not workspace.onboarded:
        yield "  the workspace is not onboarded: calls are answered 403"
    elif workspace.billing == "suspended":
        yield "  the workspace's billing is suspended: calls are answered 402"


def _tree_lines(directory: Directory, group: CallingGroup) -> Iterator[str]:
    yield f"  group {group.id} (external_entity_id {group.external_entity_id}), limits {group.enforcement}"
    for parent in group.path[1:]:
        ancestor = directory.group(parent)
        yield f"    below {parent}" + (f" ({ancestor.external_entity_id})" if ancestor else " (which is not there)")


def _call_lines(tiered: Tiered, key: KeyRow, slug: str) -> Iterator[str]:
    directory = tiered.directory
    plan = directory.plan(key.group_id or "", slug)
    endpoint = directory.endpoint(slug)
    if plan is None:
        yield f"  {slug}: not among the group's models; answered 404"
        return
    if key.settings is not None and key.settings.slugs is not None and slug not in key.settings.slugs:
        yield f"  {slug}: not among the key's slugs; answered 404"
        return
    if endpoint is None or endpoint.workspace_id != key.workspace_id:
        yield f"  {slug}: allowed, but there is no such endpoint; answered 404"
        return
    is_free = not plan.bounds and endpoint.target.provider != MODEL_API
    yield f"  {slug}: goes to {endpoint.target.provider}" + ("; no limit binds" if is_free else "")
    for bound in plan.bounds:
        yield "    at most " + _bound_text(bound)
    for line in _tier_lines(tiered, endpoint):
        yield "  " + line


def _tier_lines(tiered: Tiered, endpoint: EndpointRow) -> Iterator[str]:
    """The limits that the workspace's tier adds to those of its groups."""
    workspace = tiered.directory.workspace(endpoint.workspace_id)
    if workspace is None or endpoint.target.provider != MODEL_API:
        return
    whose = f"set by tier {workspace.tier} of workspace {workspace.id}, all its groups together"
    if find_tier(workspace.tier, tiered.tiers) is None:
        whose += f" (no figures for it in TOLLGATE_MODEL_API_TIERS here: it counts as {LOWEST_TIER})"
    for bound in tier_plan(workspace.id, tier_in_force(workspace.tier, tiered.tiers)).bounds:
        yield f"  at most {bound.limit.threshold} {bound.limit.type} per {bound.limit.unit}, {whose}"


def _bound_text(bound: Bound) -> str:
    limit = bound.limit
    counted = "" if bound.counting_group == bound.source_group else f", counted for {bound.counting_group}"
    return f"{limit.threshold} {limit.type} per {limit.unit}, set by {bound.source_group}{counted}"


def _spend_lines(plan: SpendPlan) -> Iterator[str]:
    for bound in plan.bounds:
        yield "  over all slugs at most " + _spend_text(bound)
    if plan.balance is not None:
        balance = plan.balance.balance
        deposited = f"{amount_text(balance.deposited)} {balance.currency}"
        yield f"  draws from the balance of {plan.balance.group_id}, into which {deposited} was paid in all"


def _spend_text(bound: SpendBound) -> str:
    limit = bound.limit
    counted = "" if bound.counting_group == bound.source_group else f", counted for {bound.counting_group}"
    amount = f"{amount_text(limit.amount)} {limit.currency} per {limit.unit} ({limit.enforcement})"
    return f"{amount}, set by {bound.source_group}{counted}"


def _deployment_lines(directory: Directory, endpoint: EndpointRow) -> Iterator[str]:
    target = endpoint.target
    if target.model_id is None:
        return
    model = directory.model(target.model_id)
    environment = target.environment_name or DEFAULT_ENVIRONMENT
    is_own = model is not None and model.workspace_id == endpoint.workspace_id
    deployment = model.deployment_at(Where(environment)) if model is not None and is_own else None
    if deployment is None:
        yield f"  no deployment serves {environment}: calls are answered 404"
        return
    replicas = ", ".join(deployment.replicas) or "no replica"
    yield f"  {environment} is deployment {deployment.id}, {deployment.status}: {replicas}"
    yield f"    {_fate_of_calls(deployment)}"
    if deployment.health is not None:
        yield f"    each proxy machine probes {deployment.health.path} every {deployment.health.interval_s:g} s"
    if deployment.max_concurrency is not None:
        bounds = f"{deployment.max_concurrency} calls in flight and {deployment.max_queued} queued"
        yield f"    at most {bounds} per replica and machine"


def _fate_of_calls(deployment: Deployment) -> str:
    if deployment.status in NOT_SERVING:
        return "calls are answered 503"
    probed = deployment.health is not None and bool(deployment.replicas)
    if deployment.status in PARKING:
        return "calls are parked until a probe finds a replica healthy" if probed else "calls are parked"
    if not deployment.replicas:
        return "calls are answered 503; those that were parked go on waiting"
    return "calls go to its healthy replicas" if probed else "calls go to its replicas"
