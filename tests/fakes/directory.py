"""Policy in memory: a fake of `proxy/edges/policy/directory.py`, filled row by row."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from policy.credentials import KeyKind, digest_of, registered_prefix, unregistrable
from policy.deployments import Deployment
from policy.endpoints import Target
from policy.identity.providers import IdentityProviderRow
from policy.identity.tokens import UnverifiedToken, is_signed_by
from policy.keys.roles import Role
from policy.keys.settings import NO_SETTINGS
from policy.limits.effective import Plan, plan_for
from policy.limits.groups import Enforcement, Group
from policy.limits.limit import Limit, SlugLimits
from policy.prices import Price, token_prices
from policy.snapshot import EndpointRow, KeyRow, ModelRow, PriceRow, Wire, WorkspaceRow
from policy.spend.balances import Balance
from policy.spend.effective import KeySpend, SpendPlan, spend_plan
from policy.spend.key_names import key_name, key_plan
from policy.spend.limits import SpendLimit
from proxy.accounting.slug_prices import SlugPrices
from proxy.directory_values import CallingGroup, Forwarding, Identified, KeyHolder, Shape, SlugRoute
from proxy.errors import PolicyUnavailableError
from proxy.records.head_facts import HeadFacts
from tests.policy.limits.trees import levels_for

KEY = "tg_abcdefghijkl.0123456789abcdefghijklmnopqrst"
WORKSPACE_KEY = "tg_workspacekey.0123456789abcdefghijklmnopqrst"
SLUG = "acme/chat"


def calling_group(group: Group, path: Sequence[str]) -> CallingGroup:
    """The group as stages see it."""
    return CallingGroup(group.id, group.external_entity_id, group.enforcement, tuple(path))


@dataclass
class FakeDirectory:
    """`away`: no policy is available. `unconfirmable`: control is unreachable."""

    keys: dict[str, KeyRow] = field(default_factory=dict)
    endpoints: dict[str, EndpointRow] = field(default_factory=dict)
    workspaces: dict[str, WorkspaceRow] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    models: dict[str, ModelRow] = field(default_factory=dict)
    prices: dict[str, SlugPrices] = field(default_factory=dict)
    spend: dict[str, SpendPlan] = field(default_factory=dict)
    """Spend plans by group."""
    key_spend: dict[str, SpendPlan] = field(default_factory=dict)
    """Spend plans of keys with limits of their own, by digest."""
    away: bool = False
    unconfirmable: bool = False
    confirmations: int = 0
    confirmed_as_ours: list[bool] = field(default_factory=list)
    """A value for each confirmation: the key may be ours."""
    on_models: Callable[[], None] = lambda: None
    """A callback for changes of models."""
    arrives_on_confirmation: list[tuple[str, KeyRow]] = field(default_factory=list)
    workspaces_on_confirmation: dict[str, WorkspaceRow] = field(default_factory=dict)
    providers: dict[str, IdentityProviderRow] = field(default_factory=dict)
    providers_on_question: dict[str, IdentityProviderRow] = field(default_factory=dict)
    unfetchable: bool = False
    """Keys of identity providers cannot be fetched."""
    key_questions: list[str] = field(default_factory=list)
    tokens: dict[str, KeyHolder] = field(default_factory=dict)
    """The holders of tokens that were verified."""
    confirms: asyncio.Event | None = None
    """Control answers once it is set. None: at once."""

    def key_holder(self, digest: str) -> KeyHolder | None:
        self._check()
        if digest in self.tokens:
            return self.tokens[digest]
        key = self.keys.get(digest)
        if key is None:
            return None
        group = self.group(key.group_id) if key.group_id is not None else None
        return KeyHolder(key, self.workspaces.get(key.workspace_id), group)

    def caller(self, facts: HeadFacts) -> Identified | None:
        return None  # its rows may change at any time

    def keep_caller(self, facts: HeadFacts, identified: Identified) -> None:
        """Keep nothing."""

    def shape(self, facts: HeadFacts, slug: str) -> Shape | None:
        return None

    def keep_shape(self, facts: HeadFacts, shape: Shape) -> None:
        """Keep nothing."""

    def forwarding(self, values: tuple[object, ...], slug: str) -> Forwarding | None:
        return None

    def keep_forwarding(self, values: tuple[object, ...], endpoint: EndpointRow, forwarding: Forwarding) -> None:
        """Keep nothing."""

    async def confirm_unknown(self, *, may_be_ours: bool = True) -> None:
        self.confirmations += 1
        self.confirmed_as_ours.append(may_be_ours)
        if self.unconfirmable:
            raise PolicyUnavailableError
        if self.confirms is not None:
            await self.confirms.wait()
        self.keys.update(self.arrives_on_confirmation)
        self.workspaces.update(self.workspaces_on_confirmation)

    def identity_provider(self, id: str) -> IdentityProviderRow | None:
        self._check()
        return self.providers.get(id)

    async def is_signed_by(self, token: UnverifiedToken, key: Wire) -> bool:
        return is_signed_by(token, key)

    async def confirm_keys(self, provider_id: str) -> bool:
        self.key_questions.append(provider_id)
        self.providers.update(self.providers_on_question)
        return not self.unfetchable

    def token_holder(self, provider: IdentityProviderRow, entity: str, key: KeyRow) -> KeyHolder | None:
        groups = [group for group in self.groups.values() if group.workspace_id == provider.workspace_id]
        ids = [group.id for group in groups if group.external_entity_id == entity]
        if self.providers.get(provider.id) != provider or not ids:
            return None
        workspace = self.workspaces.get(provider.workspace_id)
        holder = KeyHolder(key._replace(group_id=ids[0]), workspace, self.group(ids[0]))
        self.tokens[key.digest] = holder
        return holder

    def endpoint(self, slug: str) -> EndpointRow | None:
        self._check()
        return self.endpoints.get(slug)

    def slug_route(self, group: CallingGroup, key: KeyRow, slug: str) -> SlugRoute | None:
        endpoint = self.endpoint(slug)
        plan = self._plan(group, slug)
        if endpoint is None or plan is None:
            return None
        settings = key.settings or NO_SETTINGS
        bucket = key.bucket or key.prefix
        rates = settings.rate_limits
        further = (key_plan(group.path[-1], bucket, rates),) if rates else ()
        spend = self.spend.get(group.id)
        if settings.spend_limits:
            assert spend is None, "here a key and its group do not both have spend limits"
            own = KeySpend(key_name(bucket), settings.spend_limits)
            groups = [()] * len(group.path)
            spend = self.key_spend.get(key.digest) or spend_plan(
                group.path, group.enforcement, groups, [None] * len(groups), own
            )
            assert spend is not None
            self.key_spend[key.digest] = spend
        return SlugRoute(endpoint, plan, self.prices.get(slug), spend, further)

    def plan(self, group_id: str, slug: str) -> Plan | None:
        group = self.group(group_id)
        return None if group is None else self._plan(group, slug)

    def _plan(self, group: CallingGroup, slug: str) -> Plan | None:
        if group.id not in self.groups:
            return None
        path = [self.groups[id] for id in group.path]
        return plan_for(path, slug, levels_for(path, slug))

    def group(self, id: str) -> CallingGroup | None:
        self._check()
        group = self.groups.get(id)
        if group is None:
            return None
        path = [id]
        while (parent := self.groups[path[-1]].parent_id) is not None:
            path.append(parent)
        return calling_group(group, path)

    def slugs(self, group_id: str) -> tuple[str, ...]:
        return tuple(entry.slug for entry in self.groups[group_id].models)

    def secret(self, id: str) -> str | None:
        self._check()
        return self.secrets.get(id)

    def model(self, id: str) -> ModelRow | None:
        self._check()
        return self.models.get(id)

    def workspace(self, id: str) -> WorkspaceRow | None:
        self._check()
        return self.workspaces.get(id)

    def _check(self) -> None:
        if self.away:
            raise PolicyUnavailableError

    # Methods that fill it.

    def add_key(
        self, key: str, kind: KeyKind = KeyKind.FEDERATED, group_id: str | None = "g1", role: Role | None = None
    ) -> None:
        digest = digest_of(key)
        prefix = key.partition(".")[0] if unregistrable(key) else registered_prefix(key)
        self.keys[digest] = KeyRow(digest, prefix, kind, "w1", group_id, role=role)

    def add_slug(self, slug: str, target: Target, workspace_id: str = "w1") -> None:
        self.endpoints[slug] = EndpointRow(slug, f"e-{slug}", workspace_id, target)

    def deploy(self, status: str, *replicas: str, workspace_id: str = "w1", environment: str = "production") -> None:
        """Model `m1` with one deployment."""
        self.add_model("m1", Deployment("d1", status, replicas), workspace_id=workspace_id, environment=environment)

    def add_model(
        self, id: str, deployment: Deployment, *, workspace_id: str = "w1", environment: str = "production"
    ) -> None:
        """A model with one deployment."""
        self.models[id] = ModelRow(id, workspace_id, {deployment.id: deployment}, {environment: deployment.id})
        self.on_models()

    def limit(self, *limits: Limit, slug: str = SLUG) -> None:
        """Set the limits of group `g1` for `slug`."""
        rates = tuple(limit for limit in limits if limit.is_rate)
        days = tuple(limit for limit in limits if not limit.is_rate)
        self.groups["g1"] = Group(
            "g1", "w1", None, "entity-1", Enforcement.INDEPENDENT, (SlugLimits(slug, rates, days),)
        )

    def price(self, input: str, output: str, per_call: str = "0", currency: str = "EUR") -> None:
        """Set the price of SLUG since 1970: of a million tokens each, and of a call."""
        tokens = token_prices(Decimal(input), Decimal(output))
        price = Price(SLUG, 0, currency, tokens, Decimal(per_call))
        self.prices[SLUG] = SlugPrices(PriceRow(SLUG, "w1", (price,)))

    def limit_spend(self, *limits: SpendLimit) -> None:
        """Set the spend limits of group `g1`."""
        plan = spend_plan(["g1"], Enforcement.INDEPENDENT, [limits], [None])
        assert plan is not None
        self.spend["g1"] = plan

    def prepay(self, balance: Balance, *limits: SpendLimit) -> None:
        """Set the spend limits of group `g1`, and the balance of a group above it, `g0`."""
        plan = spend_plan(["g1", "g0"], Enforcement.INDEPENDENT, [limits, ()], [None, balance])
        assert plan is not None
        self.spend["g1"] = plan


def vendor_b() -> Target:
    return Target("VENDOR_B", secret_id="s1", target_model="their-model")


def platform() -> Target:
    return Target("PLATFORM", model_id="m1")


def ready_directory() -> FakeDirectory:
    """One workspace `w1`, group `g1`, key KEY, slug SLUG at VENDOR_B with secret `s1`."""
    directory = FakeDirectory()
    directory.workspaces["w1"] = WorkspaceRow("w1", "active", "basic", True)
    directory.add_key(KEY)
    directory.add_key(WORKSPACE_KEY, KeyKind.WORKSPACE_INVOKE, None)
    directory.add_slug(SLUG, vendor_b())
    directory.secrets["s1"] = "sk-upstream-secret"
    directory.limit()
    return directory
