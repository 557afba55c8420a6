"""The directory's values of keys and slugs, and what is cached with them until policy changes."""

from collections.abc import Container
from dataclasses import dataclass, field

from policy.hosts import Reach
from policy.limits.effective import Plan
from policy.limits.groups import Enforcement
from policy.snapshot import EndpointRow, KeyRow, WorkspaceRow
from policy.spend.effective import SpendPlan
from proxy.accounting.request_report import CallLabels
from proxy.accounting.slug_prices import SlugPrices
from proxy.callers.caller_terms import CallerTerms, terms_of
from proxy.dialects.dialect_attempt import DialectAttempt
from proxy.dialects.upstream_request import UpstreamRequest
from proxy.records.request_fields import RequestFields


@dataclass(slots=True)
class CallingGroup:
    """A key's group."""

    id: str
    external_entity_id: str
    enforcement: Enforcement
    path: tuple[str, ...]
    """The ids of the group, its parent, and so on to the root."""
    spend: SpendPlan | None = field(default=None, compare=False)
    """The spend limits and the balance that bind the group's calls; None without any. `SlugRoute` has those that are in
    force."""
    generation: int = field(default=0, compare=False)
    """The generation of policy that this is of."""


@dataclass(slots=True)
class Identified:
    """The caller is known: a live key of a kind that may use this path, in a workspace that may call.

    Of its key holder, so all calls of a key share it. Only `authenticate` gives it to a call.
    """

    key: KeyRow
    workspace: WorkspaceRow
    group: CallingGroup | None
    """The key's group. Federated keys have one, so it is set on all slug paths."""
    turn: str
    """The id of the caller's group, or its workspace key's digest: its calls share capacity and take turns."""
    terms: CallerTerms | None = None
    """Checked with each call. None: there are none, as for nearly every caller."""
    labels: dict[tuple[str, str, str], CallLabels] = field(default_factory=dict, compare=False, repr=False)
    """The caller's labels in metrics and logs, by slug, method and path."""

    def covers(self, slug: str) -> bool:
        """Return whether the caller's own terms let it call the slug. Its group must have it, too."""
        return self.terms is None or self.terms.covers(slug)


@dataclass(slots=True)
class KeyHolder:
    """The holder of a key, as policy has it. Raises as `terms_of` does."""

    key: KeyRow
    workspace: WorkspaceRow | None
    """None if the workspace was deleted."""
    group: CallingGroup | None
    """None if the group was deleted, or if keys of this kind have none."""
    identified: Identified | None = field(init=False, compare=False, repr=False)
    """None without a workspace."""

    def __post_init__(self) -> None:
        workspace = self.workspace
        turn = self.key.group_id or self.key.digest
        terms = terms_of(self.key.settings)
        self.identified = None if workspace is None else Identified(self.key, workspace, self.group, turn, terms)


@dataclass(frozen=True, slots=True)
class Forwarding:
    """The form in which a call goes upstream. Most calls of a slug with the same fields share it, whoever calls."""

    attempt: DialectAttempt
    doubtful: Container[int]
    """The statuses of answers that may call for another attempt."""
    credential: str | None
    request: UpstreamRequest
    """Path and fields, as the target's dialect has them."""
    url: str
    """"" if it leads to a replica: each call has one of its own."""
    reach: Reach
    headers: RequestFields
    """All but `x-request-id`."""
    is_shared: bool
    """True if other calls go upstream the same way."""


@dataclass(slots=True)
class Shape:
    """The part that calls with one head and one slug have in common."""

    identified: Identified
    """The only caller of the shape: policy may have changed between the look-up of the key and that of the route."""
    route: "SlugRoute"
    payer: bytes
    """The payer, as the billing event names it."""
    forwarding: Forwarding | None
    """None if each call is put to its target anew."""
    labels: CallLabels | None = None
    """The labels of their reports; None before the first."""


@dataclass(slots=True)
class SlugRoute:
    """The endpoint of a slug for a group, and the limits that bind its calls there."""

    endpoint: EndpointRow
    plan: Plan
    prices: SlugPrices | None = field(default=None, compare=False)
    """None if the slug has no price."""
    spend: SpendPlan | None = None
    """None if no spend limit and no balance binds. The same object for all slugs of a group, until policy changes."""
    further: tuple[Plan, ...] = ()
    """The limits of the caller's key, which bind beside those of its group."""
    digest: str = ""
    """The digest of the only key that calls by this route; "" if all keys of the group do, which have no limits."""
    repeats: bool = field(default=False, compare=False)
    """A call came by this route before: what is kept for it will be of use."""
