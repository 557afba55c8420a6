"""Writes a workspace as the text of a policy file. Secrets by reference: the API shows no value. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from commands.policy_file.errors import PolicyFileError
from commands.policy_file.schema import VERSION
from commands.policy_file.steps import wire_models
from commands.policy_file.values import Endpoint, Found, Group, Webhook, Workspace
from policy.groups import Enforcement

DEFAULT_NAME = "policy"
_WIDTH = 120


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # it has no annotations
    """Writes text with line breaks or invisible characters in double quotes: elsewhere YAML changes some of them."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if text.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def owner_to_export(workspace: Workspace) -> str:
    """The only owner in the workspace, or DEFAULT_NAME without one. PolicyFileError if there are several."""
    owners = sorted({found.owner for found in _everything(workspace) if found.owner is not None})
    if len(owners) > 1:
        raise PolicyFileError([f"several policy files own resources: {', '.join(owners)}. Say which one with --name"])
    return owners[0] if owners else DEFAULT_NAME


def export_text(workspace: Workspace, name: str) -> tuple[str, int]:
    """The file that `name` would own, and how many resources of other owners it leaves out."""
    owners = (None, name)
    groups = {key: found.value for key, found in workspace.groups.items() if found.owner in owners}
    secrets = [key for key, found in workspace.secrets.items() if found.owner in owners]
    variables = _variables(secrets)
    document: dict[str, Any] = {
        "version": VERSION,
        "name": name,
        "secrets": [{"name": key, "value_from": {"env": variables[key]}} for key in secrets],
        "endpoints": [
            _endpoint(found.value, workspace.models) for found in workspace.endpoints.values() if found.owner in owners
        ],
        "groups": [_group(group, groups) for group in groups.values() if group.parent not in groups],
        "webhooks": [_webhook(found.value) for found in workspace.webhooks if found.owner in owners],
    }
    left = sum(found.owner not in owners for found in _everything(workspace))
    filled = {key: value for key, value in document.items() if value != []}
    return yaml.dump(filled, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH), left


def _everything(workspace: Workspace) -> Iterable[Found[Any]]:
    found: list[Found[Any]] = [*workspace.secrets.values(), *workspace.endpoints.values(), *workspace.groups.values()]
    return [*found, *workspace.webhooks]


def _variables(names: Iterable[str]) -> dict[str, str]:
    """An environment variable for each secret: its name in capitals, and a number where two would be the same."""
    taken: set[str] = set()
    found: dict[str, str] = {}
    for name in names:
        base = "SECRET_" + re.sub("[^A-Z0-9]", "_", name.upper())
        candidate, number = base, 1
        while candidate in taken:
            number += 1
            candidate = f"{base}_{number}"
        taken.add(candidate)
        found[name] = candidate
    return found


def _endpoint(endpoint: Endpoint, models: Mapping[str, str]) -> dict[str, Any]:
    target = dict(endpoint.target)
    name = models.get(target.get("model", ""))
    if name is not None and list(models.values()).count(name) == 1 and name not in models:
        target["model"] = name
    return {"slug": endpoint.slug, "target": target}


def _group(group: Group, exported: Mapping[str, Group]) -> dict[str, Any]:
    """The group with those below it. One whose parent belongs to another file names it."""
    item: dict[str, Any] = {"external_entity_id": group.external_entity_id}
    if group.name is not None:
        item["name"] = group.name
    if group.parent is not None and group.parent not in exported:
        item["parent"] = group.parent
    if group.parent is None and group.enforcement is Enforcement.CASCADING:
        item["limit_enforcement"] = group.enforcement.value
    item["models"] = [{name: value for name, value in entry.items() if value} for entry in wire_models(group.models)]
    below = [_group(child, exported) for child in exported.values() if child.parent == group.external_entity_id]
    return item | ({"groups": below} if below else {})


def _webhook(webhook: Webhook) -> dict[str, Any]:
    item: dict[str, Any] = {"url": webhook.url}
    if webhook.description is not None:
        item["description"] = webhook.description
    return item | ({} if webhook.enabled else {"enabled": False})
