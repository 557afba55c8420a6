"""Compares a policy file with a workspace: what changes, what is refused and why. Pure.

See docs/reference/policy-files.md#who-owns-what.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from commands.policy_file.cascade import exceeding_limits, illegal_spend
from commands.policy_file.group_keys.matching import NoKeyError, RotatedKeyError, key_of_workspace
from commands.policy_file.group_keys.values import GroupKey
from commands.policy_file.trees import path_up
from commands.policy_file.values import (
    Endpoint,
    Group,
    GroupLosses,
    Kind,
    LastChange,
    OwnedResource,
    PolicyFile,
    Secret,
    SlugPrice,
    Webhook,
    Workspace,
)
from policy.endpoints import UNRESTRICTED, unknown_provider
from policy.limits.groups import MAX_DEPTH, Enforcement
from policy.limits.limit import SlugLimits

Value = Secret | Endpoint | Group | Webhook | SlugPrice | GroupKey


class Action(StrEnum):
    """The fate of a resource. ADOPT: only its owner changes."""

    CREATE = "create"
    UPDATE = "update"
    ADOPT = "adopt"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Consent:
    """The operator's consent to more than creating and changing the file's own resources."""

    prune: bool = False
    adopt: bool = False
    overwrite_drift: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One resource that changes. `before` None: there is none yet; `after` None: it is deleted."""

    action: Action
    kind: Kind
    key: str
    before: OwnedResource[Any] | None = None
    after: Any = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes of a policy file. With `refusals`, nothing is done. `notes`: what the operator should know.

    `drifts`: what something else changed since the last apply, and the file changes back or deletes, if it may.
    `last_changes`: of drifts, by kind and key. `losses`: by the keys of groups to delete.
    """

    owner: str
    changes: tuple[Change, ...]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]
    unchanged: int
    drifts: tuple[Change, ...] = ()
    last_changes: Mapping[tuple[Kind, str], LastChange] = field(default_factory=dict)
    losses: Mapping[str, GroupLosses] = field(default_factory=dict)

    @property
    def deleted_groups(self) -> dict[str, str]:
        """The ids of the groups to delete, by their keys."""
        return {
            change.key: change.before.id
            for change in self.changes
            if change.action is Action.DELETE and change.kind is Kind.GROUP and change.before is not None
        }

    def with_losses(self, losses: Mapping[str, GroupLosses]) -> "Plan":
        """The plan with what is lost with groups. Control deletes none that has credit left, so that is refused."""
        refusals = tuple(
            [
                f"group {key}: {loss.credit} is left in its balance; withdraw it first, or delete the group by"
                " `tollgate groups delete --forfeit`"
                for key, loss in losses.items()
                if loss.credit is not None
            ]
        )
        return replace(self, losses=losses, refusals=self.refusals + refusals)


def make_plan(file: PolicyFile, workspace: Workspace, consent: Consent, values: frozenset[str]) -> Plan:
    """`values`: the names of the secrets whose value is known here."""
    planner = _Planner(file.name, consent)
    planner.secrets(file.secrets, workspace, values)
    planner.endpoints(file, workspace)
    planner.groups(file.groups, workspace.groups)
    planner.keys(file, workspace)
    planner.check_groups_of_webhooks(file, workspace.groups)
    planner.webhooks(file.webhooks, workspace.webhooks)
    planner.prices(file.prices, workspace.prices)
    planner.check_deleted(workspace, file.webhooks)
    planner.check_cascade(workspace.groups)
    return Plan(
        file.name,
        tuple(planner.changes),
        tuple(planner.refusals),
        tuple(planner.notes),
        planner.unchanged,
        tuple(planner.drifts),
    )


class _Planner:
    """Collects changes, refusals and notes."""

    def __init__(self, owner: str, consent: Consent) -> None:
        self._owner = owner
        self._consent = consent
        self.changes: list[Change] = []
        self.refusals: list[str] = []
        self.notes: list[str] = []
        self.drifts: list[Change] = []
        self.unchanged = 0

    def secrets(self, secrets: Sequence[Secret], workspace: Workspace, values: frozenset[str]) -> None:
        for secret in secrets:
            present = workspace.secrets.get(secret.name)
            name = secret.name
            if name not in values and present is None:
                self.refusals.append(f"secret {name}: {secret.env} is not set, and there is no such secret yet")
            elif name not in values:
                self.notes.append(f"secret {name}: {secret.env} is not set; the stored value stays as it is")
                self._compare(Kind.SECRET, name, present, None)
            else:
                equal = workspace.equal.get(name, False)
                self._compare(Kind.SECRET, name, present, secret, is_equal=equal)
        self._leave_or_delete_rest(Kind.SECRET, workspace.secrets, {secret.name for secret in secrets})

    def endpoints(self, file: PolicyFile, workspace: Workspace) -> None:
        names = {*workspace.secrets, *(secret.name for secret in file.secrets)}
        for endpoint in file.endpoints:
            target = dict(endpoint.target)
            if (provider := target["provider"]) not in workspace.providers:
                problem = unknown_provider(provider, workspace.providers)
                self.refusals.append(f"endpoint {endpoint.slug}: provider {provider}: {problem}")
            if "secret" in target and target["secret"] not in names:
                self.refusals.append(f"endpoint {endpoint.slug}: there is no secret {target['secret']}")
            if "model" in target and (id := self._model(endpoint, workspace.models)):
                target["model"] = id
            present = workspace.endpoints.get(endpoint.slug)
            region = UNRESTRICTED if present is None else present.value.region
            if present is not None and endpoint.region not in (None, region):
                remedy = "cannot change; delete the endpoint and create it again"
                self.refusals.append(f"endpoint {endpoint.slug}: its region is {region} and {remedy}")
                continue
            goal = Endpoint(endpoint.slug, target, endpoint.region or region)
            self._compare(Kind.ENDPOINT, endpoint.slug, present, goal)
        self._leave_or_delete_rest(Kind.ENDPOINT, workspace.endpoints, {endpoint.slug for endpoint in file.endpoints})

    def _model(self, endpoint: Endpoint, models: Mapping[str, str]) -> str | None:
        """The id of the target's model, which the file names by name or id."""
        model = endpoint.target["model"]
        ids = [model] if model in models else [id for id, name in models.items() if name == model]
        if len(ids) == 1:
            return ids[0]
        reason = "there is no model" if not ids else "several models are called"
        self.refusals.append(f"endpoint {endpoint.slug}: {reason} {model}")
        return None

    def groups(self, file_groups: Sequence[Group], existing: Mapping[str, OwnedResource[Group]]) -> None:
        groups = {key: present.value for key, present in existing.items()}
        for group in file_groups:
            key = group.external_entity_id
            present = existing.get(key)
            resolved = self._in_tree(group, groups)
            if present is not None and not self._is_in_place(resolved, present.value):
                continue
            if present is None and not group.models:
                self.refusals.append(f"group {key}: a new group needs at least one entry in models")
            groups.setdefault(key, resolved)
            equal = present is not None and _group_identity(present.value) == _group_identity(resolved)
            self._compare(Kind.GROUP, key, present, resolved, is_equal=equal)
        self._leave_or_delete_rest(Kind.GROUP, existing, {group.external_entity_id for group in file_groups})

    def _in_tree(self, group: Group, groups: Mapping[str, Group]) -> Group:
        """The group with the enforcement that it has in its tree."""
        key = group.external_entity_id
        parent = None if group.parent is None else groups.get(group.parent)
        if group.parent is not None and parent is None:
            self.refusals.append(f"group {key}: there is no group {group.parent} to be its parent")
        if parent is None:
            return replace(group, enforcement=group.enforcement or Enforcement.INDEPENDENT)
        if group.enforcement not in (None, parent.enforcement):
            self.refusals.append(f"group {key}: limit_enforcement must be its parent's, {parent.enforcement}")
        if key not in groups and len(path_up(parent, groups)) >= MAX_DEPTH:
            self.refusals.append(f"group {key}: a group tree has at most {MAX_DEPTH} levels")
        return replace(group, enforcement=parent.enforcement)

    def _is_in_place(self, goal: Group, present: Group) -> bool:
        """Return whether parent and enforcement, which cannot change, are as wanted."""
        key = goal.external_entity_id
        remedy = "cannot change; delete the group and create it again"
        if goal.parent != present.parent:
            self.refusals.append(f"group {key}: its parent is {present.parent or 'none'} and {remedy}")
        elif goal.enforcement is not present.enforcement:
            self.refusals.append(f"group {key}: limit_enforcement is {present.enforcement} and {remedy}")
        else:
            return True
        return False

    def keys(self, file: PolicyFile, workspace: Workspace) -> None:
        """Compare what the file names. Keys that it does not list and settings that it leaves out stay as they are."""
        groups = {group.external_entity_id: group for group in file.groups}
        others = {key.prefix for goal in file.keys for key in workspace.keys.get(goal.group, ()) if key.is_in_use}
        prefixes: set[str | None] = set()
        for goal in file.keys:
            try:
                present = key_of_workspace(goal, workspace.keys.get(goal.group, ()))
            except RotatedKeyError as error:
                self.notes.append(f"key {goal.key}: {error}")
                continue
            except NoKeyError as error:
                self.refusals.append(f"key {goal.key}: {error}")
                continue
            if present is not None and present.prefix in prefixes:
                self.refusals.append(f"key {goal.key}: the file names it by name and by prefix; leave one out")
                continue
            prefixes.add(None if present is None else present.prefix)
            self._compare_key(goal, present, workspace.groups.get(goal.group), groups[goal.group])
        if others := others - prefixes:
            self.notes.append(f"{len(others)} keys of groups whose keys are listed are not in the file; they stay")

    def _compare_key(
        self, goal: GroupKey, present: GroupKey | None, owner: OwnedResource[Group] | None, group: Group
    ) -> None:
        name = f"key {goal.key}"
        before = {} if present is None else present.settings
        changes = {member: value for member, value in goal.settings.items() if before.get(member) != value}
        foreign = set(changes.get("slugs") or ()) - {entry.slug for entry in group.models}
        if present is not None and not changes:
            self.unchanged += 1
        elif foreign:
            self.refusals.append(f"{name}: its group may not call {', '.join(sorted(foreign))}")
        elif owner is not None and owner.owner not in (None, self._owner):
            self.refusals.append(f"{name}: its group is owned by {owner.owner}")
        elif owner is not None and owner.owner is None and not self._consent.adopt:
            self.refusals.append(f"{name}: no policy file owns its group; --adopt takes that over")
        elif present is None and goal.settings.get("disabled"):
            self.refusals.append(f"{name}: a new key is not disabled; leave that out")
        elif present is None:
            self.changes.append(Change(Action.CREATE, Kind.KEY, goal.key, None, goal))
        else:
            now = OwnedResource(present.prefix or "", present, self._owner)
            after = replace(present, settings={**before, **goal.settings})
            self.changes.append(Change(Action.UPDATE, Kind.KEY, goal.key, now, after))

    def check_groups_of_webhooks(self, file: PolicyFile, existing: Mapping[str, OwnedResource[Group]]) -> None:
        names = {*existing, *(group.external_entity_id for group in file.groups)}
        for webhook in file.webhooks:
            if webhook.group is not None and webhook.group not in names:
                self.refusals.append(f"webhook {webhook.key}: there is no group {webhook.group}")

    def webhooks(self, file_webhooks: Sequence[Webhook], existing: Sequence[OwnedResource[Webhook]]) -> None:
        """Pair webhooks of the same URL, description and group: first the file's own, then those of nobody."""
        rest = sorted(existing, key=lambda present: (present.owner != self._owner, present.owner is not None))
        choices: dict[str, OwnedResource[Webhook]] = {}
        for is_enough in (_is_same_webhook, _has_same_receiver):
            for webhook in file_webhooks:
                usable = (
                    present
                    for present in rest
                    if present.owner in (None, self._owner) or is_enough is _has_same_receiver
                )
                if webhook.key not in choices and (same := next((f for f in usable if is_enough(f, webhook)), None)):
                    choices[webhook.key] = same
                    rest.remove(same)
        for webhook in file_webhooks:
            present = choices.get(webhook.key)
            is_equal = present is not None and _is_same_webhook(present, webhook)
            self._compare(Kind.WEBHOOK, webhook.key, present, webhook, is_equal=is_equal)
        for unused in rest:
            self._leave_or_delete(Kind.WEBHOOK, unused.value.key, unused)

    def prices(self, prices: Sequence[SlugPrice], existing: Mapping[str, OwnedResource[SlugPrice]]) -> None:
        for price in prices:
            self._compare(Kind.PRICE, price.key, existing.get(price.key), price)
        self._leave_or_delete_rest(Kind.PRICE, existing, {price.key for price in prices})

    def _compare(
        self, kind: Kind, key: str, now: OwnedResource[Any] | None, goal: Any, *, is_equal: bool | None = None
    ) -> None:
        """Decide about a resource that the file describes. `goal` None: its value is unknown here."""
        if now is None:
            self.changes.append(Change(Action.CREATE, kind, key, None, goal))
            return
        equal = goal is None or (now.value == goal if is_equal is None else is_equal)
        if now.drifted and now.owner == self._owner and not equal:
            self.drifts.append(Change(Action.UPDATE, kind, key, now, goal))
        if now.owner not in (None, self._owner):
            self.refusals.append(f"{kind} {key}: it is owned by {now.owner}")
        elif equal:
            may_adopt = self._consent.adopt if now.owner is None else now.drifted and self._consent.overwrite_drift
            self._keep(Change(Action.ADOPT, kind, key, now, goal), may_adopt and goal is not None)
        elif now.owner is None and not self._consent.adopt:
            self.refusals.append(f"{kind} {key}: it differs and no policy file owns it; --adopt takes it over")
        elif now.drifted and not self._consent.overwrite_drift:
            self.refusals.append(_drifted(kind, key))
        else:
            self.changes.append(Change(Action.UPDATE, kind, key, now, goal))

    def _keep(self, change: Change, adopts: bool) -> None:
        if adopts:
            self.changes.append(change)
        else:
            self.unchanged += 1

    def _leave_or_delete_rest(self, kind: Kind, existing: Mapping[str, OwnedResource[Any]], keys: set[str]) -> None:
        for key, present in existing.items():
            if key not in keys:
                self._leave_or_delete(kind, key, present)

    def _leave_or_delete(self, kind: Kind, key: str, present: OwnedResource[Any]) -> None:
        """Decide about a resource that the file does not describe."""
        if present.owner != self._owner:
            return
        if self._consent.prune and present.drifted:
            self.drifts.append(Change(Action.DELETE, kind, key, present, None))
        if not self._consent.prune:
            self.notes.append(f"{kind} {key}: no longer in the file; --prune deletes it")
        elif present.drifted and not self._consent.overwrite_drift:
            self.refusals.append(_drifted(kind, key))
        else:
            self.changes.append(Change(Action.DELETE, kind, key, present, None))

    def check_deleted(self, workspace: Workspace, webhooks: Sequence[Webhook]) -> None:
        """Check that nothing which stays needs, or would be deleted with, what goes."""
        going = {(change.kind, change.key) for change in self.changes if change.action is Action.DELETE}
        targets = {endpoint.value.slug: endpoint.value.target for endpoint in workspace.endpoints.values()}
        targets |= {change.key: change.after.target for change in self.changes if isinstance(change.after, Endpoint)}
        for slug, target in targets.items():
            name = target.get("secret")
            if (Kind.SECRET, name) in going and (Kind.ENDPOINT, slug) not in going:
                self.refusals.append(f"secret {name}: endpoint {slug} still uses it; it cannot be deleted")
        for webhook in webhooks:
            if (Kind.GROUP, webhook.group) in going:
                self.refusals.append(f"group {webhook.group}: webhook {webhook.key} is for it; it cannot be deleted")
        parents = {key: group.value.parent for key, group in workspace.groups.items()}
        parents |= {change.key: change.after.parent for change in self.changes if isinstance(change.after, Group)}
        for key, parent in parents.items():
            if (Kind.GROUP, parent) in going and (Kind.GROUP, key) not in going:
                self.refusals.append(f"group {parent}: group {key} below it stays; it cannot be deleted without it")

    def check_cascade(self, existing: Mapping[str, OwnedResource[Group]]) -> None:
        """Check limits across groups when all is done: in CASCADING trees none exceeds an ancestor's."""
        changed = {change.key: change for change in self.changes if change.kind is Kind.GROUP}
        final = {key: group.value for key, group in existing.items()}
        final |= {key: change.after for key, change in changed.items() if change.after is not None}
        for key, change in changed.items():
            if change.after is None:
                final.pop(key, None)
        self.refusals += [*exceeding_limits(final), *illegal_spend(final)]


def _has_same_receiver(present: OwnedResource[Webhook], webhook: Webhook) -> bool:
    return present.value.identity == webhook.identity


def _is_same_webhook(present: OwnedResource[Webhook], webhook: Webhook) -> bool:
    return replace(present.value, number=webhook.number) == webhook


def _drifted(kind: Kind, key: str) -> str:
    return f"{kind} {key}: something else changed it since it was applied; --overwrite-drift overwrites that"


def _group_identity(group: Group) -> tuple[Any, ...]:
    return group.name, group.alert_percents, group.spend_limits, entries(group.models)


def entries(models: Sequence[SlugLimits]) -> frozenset[Any]:
    """Return what a list of models says, whatever its order."""
    return frozenset((entry.slug, frozenset(entry.limits)) for entry in models)
