"""The management API of one workspace in memory, with control's rules from `policy`, for commands over the API.

It keeps what policy files describe: secrets, endpoints, groups, webhooks, prices, keys. `calls` lists all writes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from commands.errors import AwayError, RefusedError
from commands.policy_file.reading import TABLES
from policy.endpoints import (
    PROVIDER_NAMES,
    UNRESTRICTED,
    EndpointRuleError,
    ProviderNames,
    Target,
    VendorCConfig,
    check_slug,
    check_target,
    unknown_provider,
)
from policy.limits.groups import (
    Enforcement,
    Group,
    check_depth,
    exceeding,
    inherit_enforcement,
    thresholds,
)
from policy.limits.limit import check_slug_limits
from policy.price_wire import price_from_wire
from policy.snapshot import models_entry_from_wire, models_entry_to_wire
from policy.spend.limits import (
    TreeCurrencyError,
    amounts,
    check_currency,
    check_spend_limits,
    spend_limit_to_wire,
    spend_limits_from_wire,
)

PREFIXES = ("acme",)
_KINDS = ("secrets", "endpoints", "groups", "webhooks", "prices")
MAX_WEBHOOKS = 20
Wire = dict[str, Any]


def refused(status: int, code: str) -> RefusedError:
    return RefusedError(f"{status}: {code}", status, code)


class WorkspaceApi:
    """A `commands.connection.Client`. After `away_after` writes it answers no more."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Wire]] = {name: {} for name in _KINDS}
        self.models: dict[str, str] = {}
        self.keys: dict[str, Wire] = {}
        """Keys of groups by prefix, as the API lists them."""
        self.providers: ProviderNames = PROVIDER_NAMES
        self.calls: list[tuple[str, str]] = []
        self.away_after: int | None = None
        self._now = 0

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        if path == TABLES:
            return {"providers": [{"name": name} for name in self.providers]}
        parts = path.strip("/").split("/")
        if parts[-1] == "api_keys" and method == "GET":
            return self._list_keys(query)
        if "api_keys" in parts:
            return self._write_key(method, path, body)
        names = [part for part in parts if part in (*self.items, "models")]
        kind = names[0]
        rest = parts[parts.index(names[0]) + 1 :]
        if method == "GET":
            return self._list(kind, query)
        if rest == ["compare"]:
            secret = self.items["secrets"].get(body["name"])
            return {"exists": secret is not None, "equal": secret is not None and secret["value"] == body["value"]}
        if self.away_after is not None and len(self.calls) >= self.away_after:
            raise AwayError("the connection broke")
        self.calls.append((method, path))
        self._now += 1
        change = getattr(self, f"_{method.lower()}_{kind}")
        return self._shown(change(body, *rest, **query))

    def _list_keys(self, query: Mapping[str, Any]) -> Wire:
        entity = query.get("external_entity_id")
        items = [key for key in self.keys.values() if entity in (None, key["group"]["external_entity_id"])]
        return {"items": items, "pagination": {"cursor": None}}

    def _write_key(self, method: str, path: str, body: Wire) -> Wire:
        """POST of a key, or PATCH of one, by control's rules for what is set on it."""
        if self.away_after is not None and len(self.calls) >= self.away_after:
            raise AwayError("the connection broke")
        self.calls.append((method, path))
        self._now += 1
        group_id, _, *prefixes = path.strip("/").split("/")[3:]
        group = self._existing("groups", group_id)
        prefix = prefixes[0] if prefixes else f"tg_{self._now}"
        assert method == ("PATCH" if prefixes else "POST")
        assert prefixes or "disabled" not in body
        key = self.keys[prefix] if prefixes else self.new_key(prefix, group_id, body["name"])
        changed = {**key, **body}
        if "slugs" in body and not set(body["slugs"] or ()) <= {entry.slug for entry in group["group"].models}:
            raise refused(400, "SLUGS")
        if "spend_limits" in body:
            changed["spend_limits"] = self._legal_spend(group["group"], body["spend_limits"], but=prefix)
        self.keys[prefix] = changed
        return changed if prefixes else {**changed, "api_key": f"{prefix}.secret"}

    def new_key(self, prefix: str, group_id: str, name: str | None) -> Wire:
        """A key on which nothing is set, as it is listed."""
        entity = self.items["groups"][group_id]["metadata"]["external_entity_id"]
        empty = {"expires_at": None, "disabled": False, "allowed_ips": None, "slugs": None}
        lists: Wire = {"rate_limits": [], "spend_limits": []}
        group = {"id": group_id, "external_entity_id": entity}
        return {"prefix": prefix, "name": name, "state": "ACTIVE", "group": group, **empty, **lists}

    def write(self, kind: str, key: str) -> None:
        """Something other than the owner writes the resource, and changes nothing."""
        self._now += 1
        self.items[kind][key]["updated"] = self._now

    def state(self) -> Any:
        """Everything but ids and times."""
        external = {id: item["metadata"]["external_entity_id"] for id, item in self.items["groups"].items()}
        groups = {
            external[id]: (item["metadata"]["name"], item["group"].enforcement, external.get(item["group"].parent_id),
                           frozenset((e.slug, frozenset(e.limits)) for e in item["group"].models),
                           item["alert_percents"], item["spend_limits"])
            for id, item in self.items["groups"].items()
        }  # fmt: skip
        secrets = {name: item["value"] for name, item in self.items["secrets"].items()}
        names = {item["id"]: name for name, item in self.items["secrets"].items()}
        targets = [(item["slug"], item["targets"][0]) for item in self.items["endpoints"].values()]
        endpoints = {slug: {**target, "secret_id": names[target["secret_id"]]} for slug, target in targets}
        members = ("url", "description", "enabled", "include_details", "event_types")
        hooks = [
            [*(hook[name] for name in members), external.get(hook["group_id"])]
            for hook in self.items["webhooks"].values()
        ]
        prices = {key: price_from_wire(item["slug"], item) for key, item in self.items["prices"].items()}
        return groups, secrets, endpoints, sorted(map(str, hooks)), prices

    def _list(self, kind: str, query: Mapping[str, Any]) -> Wire:
        if kind == "models":
            items = [{"id": id, "name": name} for id, name in self.models.items()]
        else:
            items = [self._shown(item) for item in self.items[kind].values()]
        start = int(query.get("cursor") or 0)
        size = 2
        more = start + size < len(items)
        return {"items": items[start : start + size], "pagination": {"cursor": str(start + size) if more else None}}

    def _shown(self, item: Wire) -> Wire:
        body = {name: value for name, value in item.items() if name not in ("value", "owner", "applied", "updated")}
        if item["owner"] is not None:
            body["managed_by"] = {"name": item["owner"], "drifted": item["applied"] != item["updated"]}
        if "group" in item:
            group = body.pop("group")
            body["models"] = [models_entry_to_wire(entry) for entry in group.models]
            body["hierarchy"] = {"limit_enforcement": group.enforcement.value, "parent_group_id": group.parent_id}
        return body

    def _keep(self, kind: str, key: str, item: Wire, body: Wire) -> Wire:
        item["updated"] = self._now
        item.setdefault("owner", None)
        item.setdefault("applied", None)
        if "managed_by" in body:
            item |= {"owner": body["managed_by"], "applied": self._now}
        self.items[kind][key] = item
        return item

    def _existing(self, kind: str, key: str) -> Wire:
        if key not in self.items[kind]:
            raise refused(404, "NOT_FOUND")
        return self.items[kind][key]

    def _post_secrets(self, body: Wire) -> Wire:
        old = self.items["secrets"].get(body["name"], {"id": f"sec_{self._now}", "name": body["name"]})
        return self._keep("secrets", body["name"], {**old, "value": body["value"]}, body)

    def _delete_secrets(self, _body: None, name: str) -> Wire:
        secret = self._existing("secrets", name)
        if any(secret["id"] == e["targets"][0].get("secret_id") for e in self.items["endpoints"].values()):
            raise refused(409, "SECRET_IN_USE")
        return self.items["secrets"].pop(name)

    def _check_target(self, body: Wire) -> None:
        target = body["targets"][0]
        if target["provider"] not in self.providers:
            raise refused(400, unknown_provider(target["provider"], self.providers))
        fields = self.providers[target["provider"]].own(target)
        place = fields.pop("vendor_c_config", None)
        fields["dialects"] = tuple(fields["dialects"]) if "dialects" in fields else None
        try:
            check_target(Target(**fields, vendor_c_config=VendorCConfig(**place) if place else None))
        except EndpointRuleError as error:
            raise refused(400, error.message) from None
        if "secret_id" in fields and fields["secret_id"] not in {s["id"] for s in self.items["secrets"].values()}:
            raise refused(400, "no such secret")

    def _post_endpoints(self, body: Wire) -> Wire:
        self._check_target(body)
        check_slug(body["slug"], PREFIXES)
        if any(item["slug"] == body["slug"] for item in self.items["endpoints"].values()):
            raise refused(409, "SLUG_TAKEN")
        id = f"ep_{self._now}"
        region = body.get("region", UNRESTRICTED)
        item = {"id": id, "slug": body["slug"], "region": region, "targets": body["targets"]}
        return self._keep("endpoints", id, item, body)

    def _patch_endpoints(self, body: Wire, id: str) -> Wire:
        self._check_target(body)
        return self._keep("endpoints", id, {**self._existing("endpoints", id), "targets": body["targets"]}, body)

    def _delete_endpoints(self, _body: None, id: str) -> Wire:
        self._existing("endpoints", id)
        return self.items["endpoints"].pop(id)

    def _ancestors(self, parent_id: str | None) -> list[Group]:
        ancestors: list[Group] = []
        while parent_id is not None:
            ancestors.append(self._existing("groups", parent_id)["group"])
            parent_id = ancestors[-1].parent_id
        return ancestors

    def _descendants(self, id: str) -> list[Group]:
        return [
            item["group"]
            for item in self.items["groups"].values()
            if id in [group.id for group in self._ancestors(item["group"].parent_id)]
        ]

    def _check_group(self, group: Group) -> None:
        for entry in group.models:
            check_slug_limits(entry)
            check_slug(entry.slug, PREFIXES)
        if group.enforcement is Enforcement.CASCADING:
            pairs = [(upper.models, group.models) for upper in self._ancestors(group.parent_id)]
            pairs += [(group.models, lower.models) for lower in self._descendants(group.id)]
            if any(exceeding(thresholds(upper), thresholds(lower)) for upper, lower in pairs):
                raise refused(400, "CHILD_EXCEEDS_PARENT_LIMIT")

    def _legal_spend(self, group: Group, wire: list[Wire], but: str | None = None) -> list[Wire]:
        """Check the spend limits by control's rules and return them as they are stored."""
        limits = spend_limits_from_wire(wire)
        own = {id: spend_limits_from_wire(item["spend_limits"]) for id, item in self.items["groups"].items()}
        ancestors = self._ancestors(group.parent_id)
        root = ancestors[-1].id if ancestors else group.id
        tree = {root, *(one.id for one in self._descendants(root))}
        keys = [key for prefix, key in self.keys.items() if key["group"]["id"] in tree and prefix != but]
        of_keys = [one for key in keys for one in spend_limits_from_wire(key["spend_limits"])]
        others = tree if but is not None else tree - {group.id}
        check_spend_limits(limits)
        try:
            check_currency([*limits, *of_keys, *(one for id in others for one in own.get(id, ()))])
        except TreeCurrencyError:
            raise refused(400, "SPEND") from None
        if but is None and group.enforcement is Enforcement.CASCADING:
            pairs = [(own[upper.id], limits) for upper in ancestors]
            pairs += [(limits, own[lower.id]) for lower in self._descendants(group.id)]
            if any(exceeding(amounts(upper), amounts(lower)) for upper, lower in pairs):
                raise refused(400, "SPEND")
        return [spend_limit_to_wire(limit) for limit in limits]

    def _put_prices(self, body: Wire) -> Wire:
        check_slug(body["slug"], PREFIXES)
        key = f"{body['slug']} from {body['valid_from']}"
        old = self.items["prices"].get(key, {})
        ownership: Wire = {name: old[name] for name in ("owner", "applied") if name in old}
        members = {name: value for name, value in body.items() if name != "managed_by"}
        return self._keep("prices", key, {**ownership, **members}, body)

    def _delete_prices(self, _body: None, *, slug: str, valid_from: str) -> Wire:
        key = f"{slug} from {valid_from}"
        self._existing("prices", key)
        return self.items["prices"].pop(key)

    def _post_groups(self, body: Wire) -> Wire:
        assert body["models"], "a new group needs an entry"
        key = body["metadata"]["external_entity_id"]
        hierarchy = body["hierarchy"]
        if any(item["metadata"]["external_entity_id"] == key for item in self.items["groups"].values()):
            raise refused(409, "EXTERNAL_ENTITY_ID_TAKEN")
        above = self._ancestors(hierarchy.get("parent_group_id"))
        check_depth(above)
        mode = inherit_enforcement(Enforcement(hierarchy["limit_enforcement"]), above[0] if above else None)
        models = tuple(models_entry_from_wire(entry) for entry in body["models"])
        group = Group(f"grp_{self._now}", "ws", hierarchy.get("parent_group_id"), key, mode, models)
        self._check_group(group)
        percents = sorted(body.get("alert_percents", []))
        item = {"id": group.id, "metadata": body["metadata"], "group": group, "alert_percents": percents}
        item["spend_limits"] = self._legal_spend(group, body.get("spend_limits", []))
        return self._keep("groups", group.id, item, body)

    def _patch_groups(self, body: Wire, id: str) -> Wire:
        assert body.keys() & {"metadata", "models", "alert_percents", "spend_limits", "managed_by"}
        item = dict(self._existing("groups", id))
        if "models" in body:
            models = tuple(models_entry_from_wire(entry) for entry in body["models"])
            item["group"] = replace(item["group"], models=models)
            self._check_group(item["group"])
        if "metadata" in body:
            item["metadata"] = item["metadata"] | body["metadata"]
        if "alert_percents" in body:
            item["alert_percents"] = sorted(body["alert_percents"])
        if "spend_limits" in body:
            item["spend_limits"] = self._legal_spend(item["group"], body["spend_limits"])
        return self._keep("groups", id, item, body)

    def _delete_groups(self, _body: None, id: str) -> Wire:
        below = [group.id for group in self._descendants(id)]
        self.keys = {prefix: key for prefix, key in self.keys.items() if key["group"]["id"] not in (id, *below)}
        for group_id in below:
            del self.items["groups"][group_id]
        self._existing("groups", id)
        return self.items["groups"].pop(id)

    def _post_webhooks(self, body: Wire) -> Wire:
        if len(self.items["webhooks"]) >= MAX_WEBHOOKS:
            raise refused(409, "TOO_MANY_WEBHOOKS")
        id = f"whk_{self._now}"
        webhook = {"id": id, "url": body["url"], "description": body["description"], "enabled": True}
        webhook["include_details"] = body.get("include_details", False)
        webhook["event_types"] = sorted(body.get("event_types", ["API_BILLING_USAGE"]))
        webhook["group_id"] = body.get("group_id")
        if webhook["group_id"] is not None:
            self._existing("groups", webhook["group_id"])
        return self._keep("webhooks", id, webhook, body) | {"secret": f"whsec_{id}"}

    def _patch_webhooks(self, body: Wire, id: str) -> Wire:
        item = self._existing("webhooks", id)
        changes = {name: body[name] for name in ("enabled", "include_details", "event_types") if name in body}
        return self._keep("webhooks", id, item | changes, body)

    def _delete_webhooks(self, _body: None, id: str) -> Wire:
        self._existing("webhooks", id)
        return self.items["webhooks"].pop(id)
