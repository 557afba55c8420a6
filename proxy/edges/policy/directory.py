"""Looks up policy for a worker: synchronous, read-only, from the machine's policy replica.

What a call needs is read by key, group, and group and slug, so its cost does not grow with the number of keys, groups
and models. Values are cached until one of their rows changes; missing rows are never cached. A replica that cannot be
read raises `PolicyUnavailableError`; it must never look like a missing row.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from policy.credentials import TOKEN_ID
from policy.endpoints import UnusableCredentialError, check_credential
from policy.identity.providers import IdentityProviderRow
from policy.identity.tokens import UnverifiedToken, is_signed_by
from policy.keys.settings import NO_SETTINGS
from policy.limits.effective import Plan, plan_of_ids
from policy.sealing import SealedWithUnknownKeyError, unseal
from policy.snapshot import (
    EndpointRow,
    KeyRow,
    ModelRow,
    RowKind,
    SecretRow,
    Wire,
    WorkspaceRow,
    group_members_from_wire,
)
from policy.spend.effective import KeySpend, SpendPlan
from policy.spend.key_names import key_name, key_plan
from proxy.accounting.slug_prices import SlugPrices
from proxy.directory_values import CallingGroup, Forwarding, Identified, KeyHolder, Shape, SlugRoute
from proxy.edges.policy.policy_cache import Entry, PolicyCache
from proxy.edges.policy.replica_rows import EncodedGroup, ReplicaRows
from proxy.edges.policy.row_values import (
    Compiled,
    decoded,
    decoded_key,
    holder_of,
    path_limits,
    slug_prices,
    spend_plan_of,
    unreadable,
)
from proxy.errors import PolicyUnavailableError
from proxy.records.head_facts import HeadFacts
from proxy.refusals import TargetSecretError, TargetSecretUnusableError
from runtime.log_lines import cause_of

CACHE_WEIGHT = 16_000_000
"""The size of a worker's cache, in bytes of memory. The weights below are the measured sizes of values.

A full pass of the garbage collector visits each cached value: with 56 MB it held a worker's loop for 170 ms."""
MAX_FORWARDED_BYTES = 8192
"""The most bytes of fields with which a call may share a forwarding with others."""
_ROW_WEIGHT = 150
_BYTE_WEIGHT = 2
"""The weight of each byte of an encoded row."""
_HOLDER_WEIGHT = 1500
_ROUTE_WEIGHT = 500
_GROUP_WEIGHT = 40
"""The weight of each group of a route's plan."""
_SPEND_WEIGHT = 1000
_CALLER_WEIGHT = 200
_SHAPE_WEIGHT = 1000
_FORWARDING_WEIGHT = 1200
# Plain strings: hashing an enum member costs more than the look-up.
_KEY = RowKind.KEY.value
_ENDPOINT = RowKind.ENDPOINT.value
_WORKSPACE = RowKind.WORKSPACE.value
_GROUP = RowKind.GROUP.value
_SECRET = RowKind.SECRET.value
_MODEL = RowKind.MODEL.value
_PRICE = RowKind.PRICE.value
_IDENTITY_PROVIDER = RowKind.IDENTITY_PROVIDER.value
_SPEND = "spend"
_SPEND_LIMITS = '"spend_limits":'
_BALANCE = '"balance":'
_PRICED = "priced"
"""The kind of an endpoint with its prices, in the cache's keys."""

log = logging.getLogger(__name__)


class GenerationSource(Protocol):
    """Tells which generation the replica holds. Satisfied by `ReplicaStamp`."""

    @property
    def generation_cell(self) -> Sequence[int]:
        """One number, read on every look-up: indexing a memory cell is cheaper than a call."""
        ...


class Confirmer(Protocol):
    """Asks for a refresh of the replica from control. In a worker this is the channel to the supervisor."""

    async def confirm(self, *, may_be_ours: bool = True) -> bool:
        """Return whether control has just confirmed the replica; False when it cannot be reached.

        `may_be_ours`: the unknown key has the form of those that are minted here. Others never take their places.
        """
        ...

    async def confirm_keys(self, provider_id: str) -> bool:
        """Return whether control has just fetched the keys of an identity provider, and the replica has them."""
        ...

    def report_damage(self) -> None:
        """Report that the replica file cannot be read, so that the supervisor checks it."""
        ...


class UnusableSecret:
    """Stands for the value of a secret that no header field can carry."""


class _Priced(NamedTuple):
    """An endpoint, and the prices of its slug."""

    endpoint: EndpointRow
    prices: SlugPrices | None


class _KeyLimits(NamedTuple):
    """The plans of a key with limits of its own. `spend`: its groups' spend limits included, if `has_spend`."""

    further: tuple[Plan, ...]
    spend: SpendPlan | None
    has_spend: bool


class SnapshotDirectory:
    """One worker's view of the replica at `path`. The file is opened on first use, so it need not exist yet."""

    def __init__(self, path: Path, keys: Sequence[bytes], stamp: GenerationSource, confirmer: Confirmer) -> None:
        self._keys = keys
        self._generation_cell = stamp.generation_cell
        self._confirmer = confirmer
        self._rows = ReplicaRows(path, confirmer.report_damage)
        self._cache = PolicyCache(CACHE_WEIGHT)
        # One thread: each of several could hold up the loop, which needs the interpreter's lock as they do.
        self._verifier = ThreadPoolExecutor(1, "tokens")

    def follow(self) -> None:
        """Follow the replica ahead of calls, so that a call finds its rows in memory while the disk stalls."""
        with contextlib.suppress(PolicyUnavailableError, OSError):  # the next call reports it
            self._follow()

    def key_holder(self, digest: str) -> KeyHolder | None:
        """Find the holder of the key; None when there is no such key."""
        self._follow()
        return self._cache.get(digest) or self._key_holder(digest)

    def identity_provider(self, id: str) -> IdentityProviderRow | None:
        self._follow()
        return self._row(_IDENTITY_PROVIDER, id, IdentityProviderRow.from_wire)

    async def is_signed_by(self, token: UnverifiedToken, key: Wire) -> bool:
        """Verify a signature beside the loop: it may take more than 0.2 ms."""
        return await asyncio.get_running_loop().run_in_executor(self._verifier, is_signed_by, token, key)

    async def confirm_keys(self, provider_id: str) -> bool:
        """Return whether control has just fetched the provider's keys; the caller then looks again."""
        return await self._confirmer.confirm_keys(provider_id)

    def token_holder(self, provider: IdentityProviderRow, entity: str, key: KeyRow) -> KeyHolder | None:
        """Find the holder of a verified token, and keep it until a row behind it changes."""
        if self.identity_provider(provider.id) != provider:
            return None  # what has verified the token may be over
        generation = self._cache.generation
        encoded = self._rows.group_named(provider.workspace_id, entity)
        workspace = self._row(_WORKSPACE, provider.workspace_id, WorkspaceRow.from_wire)
        if encoded is None or workspace is None:
            return None
        group = self._group(encoded)
        holder = KeyHolder(key._replace(group_id=group.id), workspace, group)
        rows = (_IDENTITY_PROVIDER, provider.id, _WORKSPACE, workspace.id)
        self._cache.put(key.digest, Entry(holder, _HOLDER_WEIGHT, rows, generation, group.path))
        return holder

    def slug_route(self, group: CallingGroup, key: KeyRow, slug: str) -> SlugRoute | None:
        """Find the slug's route for a key of the group; None when there is no such slug, or the group may not call it.

        Keys without limits of their own share one.
        """
        self._follow()
        if key.settings is not None and key.settings.has_limits:
            return self._cache.get((key.digest, slug)) or self._key_route(group, key, slug)
        return self._cache.get((group.id, slug)) or self._slug_route(group, slug)

    def caller(self, facts: HeadFacts) -> Identified | None:
        """Find who sends requests with this head, if that was kept under the present policy."""
        entry = self._cache.entries.young.get(facts)
        if entry is not None and entry.checked == self._generation_cell[0]:
            identified: Identified | None = entry.value
        else:
            identified = self._kept(facts) if facts.repeats else None  # else it was not kept
        return identified

    def keep_caller(self, facts: HeadFacts, identified: Identified) -> None:
        """Keep who sends requests with this head, if that is what the cache says of the key now."""
        holder = self._cache.entry(identified.key.digest)
        if holder is not None and holder.value.identified is identified:
            self._cache.put(facts, Entry(identified, _CALLER_WEIGHT, holder.rows, holder.checked, holder.groups))

    def shape(self, facts: HeadFacts, slug: str) -> Shape | None:
        """Find what calls with this head and slug have in common, if that was kept under the present policy."""
        entry = self._cache.entries.young.get((facts, slug))
        if entry is not None and entry.checked == self._generation_cell[0]:
            shape: Shape | None = entry.value
        else:
            shape = self._kept((facts, slug)) if facts.repeats else None
        return shape

    def keep_shape(self, facts: HeadFacts, shape: Shape) -> None:
        """Keep it if route and secret are those that calls get now: policy may have changed while the call waited."""
        plan = shape.route.plan
        route = self._cache.entry((shape.route.digest or plan.group_id, plan.slug))
        if route is None or route.value is not shape.route:
            return
        rows = route.rows
        forwarding = shape.forwarding
        if forwarding is not None:
            secret = self._secret_row(shape.route.endpoint, forwarding)
            if secret is None:
                return
            rows = (*rows, *secret)
        entry = Entry(shape, _SHAPE_WEIGHT, rows, route.checked, route.groups, plan.slug)
        self._cache.put((facts, plan.slug), entry)

    def forwarding(self, values: tuple[object, ...], slug: str) -> Forwarding | None:
        """Find how calls of the slug with these values go upstream, if that was kept under the present policy."""
        forwarding: Forwarding | None = self._kept((values, slug))
        return forwarding

    def keep_forwarding(self, values: tuple[object, ...], endpoint: EndpointRow, forwarding: Forwarding) -> None:
        """Keep it if endpoint and secret are those that calls get now, as for `keep_shape`."""
        entry = self._cache.entry((_PRICED, endpoint.slug))
        size = len(repr(values)) + len(forwarding.headers.lines)
        if entry is None or entry.value.endpoint != endpoint or size > MAX_FORWARDED_BYTES:
            return
        secret = self._secret_row(endpoint, forwarding)
        if secret is not None:
            weight = _FORWARDING_WEIGHT + _BYTE_WEIGHT * size
            self._cache.put((values, endpoint.slug), Entry(forwarding, weight, (*entry.rows, *secret), entry.checked))

    def _secret_row(self, endpoint: EndpointRow, forwarding: Forwarding) -> tuple[str, ...] | None:
        """The name of the secret's row; () if the target has none, None if its value has changed."""
        secret_id = endpoint.target.secret_id
        if secret_id is None:
            return ()
        is_current = self._cache.get((_SECRET, secret_id)) == forwarding.credential
        return (_SECRET, secret_id) if is_current else None

    def secret(self, id: str) -> str | None:
        """The value of a target's secret; None if it is gone.

        Raises `TargetSecretError` if no key opens it, `TargetSecretUnusableError` if no header field can carry it.
        """
        self._follow()
        value = self._row(_SECRET, id, self._unsealed)
        if isinstance(value, UnusableSecret):
            raise TargetSecretUnusableError
        return value

    def model(self, id: str) -> ModelRow | None:
        self._follow()
        return self._row(_MODEL, id, ModelRow.from_wire)

    def endpoint(self, slug: str) -> EndpointRow | None:
        self._follow()
        return self._row(_ENDPOINT, slug, EndpointRow.from_wire)

    def workspace(self, id: str) -> WorkspaceRow | None:
        self._follow()
        return self._row(_WORKSPACE, id, WorkspaceRow.from_wire)

    def group(self, id: str) -> CallingGroup | None:
        self._follow()
        return self._group_now(id)

    def slugs(self, group_id: str) -> tuple[str, ...]:
        """The slugs that the group may call, in the order of its models."""
        self._follow()
        return self._rows.slugs(group_id)

    def plan(self, group_id: str, slug: str) -> Plan | None:
        """The plan that binds a call of the group to the slug; None when the group may not call it."""
        group = self.group(group_id)
        return None if group is None else self._plan(group, slug)

    async def confirm_unknown(self, *, may_be_ours: bool = True) -> None:
        """Return when control has confirmed the replica after this call. The caller then looks again."""
        if not await self._confirmer.confirm(may_be_ours=may_be_ours):
            raise PolicyUnavailableError("control cannot be reached to confirm an unknown key")

    def close(self) -> None:
        self._verifier.shutdown(wait=False, cancel_futures=True)
        self._rows.close()

    def _kept(self, key: object) -> Any:
        """Return the cached value, unless policy has changed since the last look-up. Never raises."""
        return self._cache.get(key) if self._generation_cell[0] == self._cache.generation else None

    def _follow(self) -> None:
        """Follow the replica after a change of generation."""
        generation = self._generation_cell[0]  # read before the changes, so that a later one is noticed
        if generation != self._cache.generation:
            self._cache.advance(generation, self._rows.changes())

    def _key_holder(self, digest: str) -> KeyHolder | None:
        if digest.startswith(TOKEN_ID):
            return None  # it is not kept, and no token is a key
        generation = self._cache.generation
        row = self._rows.key(digest)
        if row is None:
            return None
        body, encoded = row
        key = decoded_key(digest, body)
        workspace = self._row(_WORKSPACE, key.workspace_id, WorkspaceRow.from_wire)
        group = None if encoded is None else self._group(encoded)
        holder = holder_of(key, workspace, group)
        if workspace is not None and (group is not None or key.group_id is None):
            rows = (_KEY, digest, _WORKSPACE, key.workspace_id)
            groups = () if group is None else group.path
            self._cache.put(digest, Entry(holder, _HOLDER_WEIGHT, rows, generation, groups))
        return holder

    def _slug_route(self, group: CallingGroup, slug: str) -> SlugRoute | None:
        generation = self._cache.generation
        priced = self._priced(slug)
        plan = self._plan(group, slug) if priced is not None else None
        if priced is None or plan is None:
            return None
        route = SlugRoute(priced.endpoint, plan, priced.prices, self._spend(group))
        weight = _ROUTE_WEIGHT + _GROUP_WEIGHT * len(plan.groups)
        entry = Entry(route, weight, (_ENDPOINT, slug, _PRICE, slug), generation, group.path, slug)
        self._cache.put((group.id, slug), entry)
        return route

    def _key_route(self, group: CallingGroup, key: KeyRow, slug: str) -> SlugRoute | None:
        """The route of a key with limits of its own: its group's, and these limits beside. `key` may be older."""
        generation = self._cache.generation
        holder = self._cache.get(key.digest) or self._key_holder(key.digest)
        key = key if holder is None else holder.key
        route = self._slug_route(group, slug)
        if route is None:
            return None
        limits = self._key_limits(group, key)
        route = replace(
            route, further=limits.further, spend=limits.spend if limits.has_spend else route.spend, digest=key.digest
        )
        weight = _ROUTE_WEIGHT + _GROUP_WEIGHT * len(route.plan.groups)
        rows = (_KEY, key.digest, _ENDPOINT, slug, _PRICE, slug)
        self._cache.put((key.digest, slug), Entry(route, weight, rows, generation, group.path, slug))
        return route

    def _key_limits(self, group: CallingGroup, key: KeyRow) -> "_KeyLimits":
        """The plans of a key's own limits: the same objects for all its slugs, so that their calls travel together."""
        limits: _KeyLimits | None = self._cache.get((_KEY, key.digest))
        if limits is None:
            generation = self._cache.generation
            settings = key.settings or NO_SETTINGS
            bucket = key.bucket or key.prefix
            rates = settings.rate_limits
            further = (key_plan(group.path[-1], bucket, rates),) if rates else ()
            spend = None
            if settings.spend_limits:
                spend = self._key_spend(group.id, KeySpend(key_name(bucket), settings.spend_limits))
            limits = _KeyLimits(further, spend, bool(settings.spend_limits))
            entry = Entry(limits, _SPEND_WEIGHT, (_KEY, key.digest), generation, group.path)
            self._cache.put((_KEY, key.digest), entry)
        return limits

    def _key_spend(self, group_id: str, key: KeySpend) -> SpendPlan | None:
        """The spend plan of a key with spend limits of its own; None if its group is gone."""
        encoded = self._rows.group(group_id)
        if encoded is None:
            return None
        bodies = encoded.each_body
        path = encoded.path
        try:
            *_, enforcement = group_members_from_wire(path[0], orjson.loads(bodies[0]))
            return spend_plan_of(path, enforcement, bodies, key)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise PolicyUnavailableError(unreadable("the spend limits of a key or its groups", error)) from None

    def _priced(self, slug: str) -> "_Priced | None":
        """The slug's endpoint, and the prices that its workspace has set. That it has none is kept, too."""
        priced: _Priced | None = self._cache.get((_PRICED, slug))
        if priced is None:
            generation = self._cache.generation
            endpoint = self._row(_ENDPOINT, slug, EndpointRow.from_wire)
            if endpoint is None:
                return None
            prices = self._row(_PRICE, slug, slug_prices)
            if prices is not None and prices.workspace_id != endpoint.workspace_id:
                prices = None
            priced = _Priced(endpoint, prices)
            rows = (_ENDPOINT, slug, _PRICE, slug)  # new prices are named among the changes
            self._cache.put((_PRICED, slug), Entry(priced, _ROW_WEIGHT, rows, generation))
        return priced

    def _plan(self, group: CallingGroup, slug: str) -> Plan | None:
        limits = path_limits(self._rows.entries(group.path, slug))
        return plan_of_ids(group.path, group.enforcement, slug, limits)

    def _spend(self, group: CallingGroup) -> SpendPlan | None:
        """The group's spend plan. `group` may be of policy that has changed since: its call's body came slowly."""
        current: CallingGroup | None = group
        if not self._cache.are_unchanged(group.path, group.generation):
            current = self._group_now(group.id)
        return None if current is None else current.spend

    def _group_now(self, id: str) -> CallingGroup | None:
        encoded = self._rows.group(id)
        return None if encoded is None else self._group(encoded)

    def _group(self, encoded: EncodedGroup) -> CallingGroup:
        """Decode a group. Raises if this version does not understand it: it may have limits."""
        bodies, path = encoded
        generation = self._cache.generation
        try:
            own_body = bodies[: bodies.index("\n")]
            id, _, _, external_id, enforcement = group_members_from_wire(path[0], orjson.loads(own_body))
            if _SPEND_LIMITS not in bodies and _BALANCE not in bodies:
                return CallingGroup(id, external_id, enforcement, path, None, generation)
            plan: SpendPlan | None = self._cache.get((_SPEND, path[0]))
            if plan is None:
                plan = spend_plan_of(path, enforcement, encoded.each_body)
            if plan is not None:
                self._cache.put((_SPEND, path[0]), Entry(plan, _SPEND_WEIGHT, (), generation, path))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise PolicyUnavailableError(unreadable("a group", error)) from None
        return CallingGroup(id, external_id, enforcement, path, plan, generation)

    def _row(self, kind: str, id: str, compile: Callable[[str, Any], Compiled]) -> Compiled | None:
        value: Compiled | None = self._cache.get((kind, id))
        if value is None:
            generation = self._cache.generation
            body = self._rows.body(kind, id)
            value = None if body is None else decoded(kind, id, body, compile)
            if body is not None and value is not None:
                weight = _ROW_WEIGHT + _BYTE_WEIGHT * len(body)
                self._cache.put((kind, id), Entry(value, weight, (kind, id), generation))
        return value

    def _unsealed(self, id: str, body: dict[str, Any]) -> str | UnusableSecret:
        try:
            value = unseal(self._keys, id, SecretRow.from_wire(id, body).ciphertext)
            check_credential(value)
        except SealedWithUnknownKeyError:  # readiness names it
            raise TargetSecretError from None
        except UnusableCredentialError as error:
            log.warning(
                "Secret %s cannot be sent in a header field (%s); calls of its endpoints are answered 503."
                " Store its value again.",
                id,
                cause_of(error),
            )
            return UnusableSecret()
        return value
