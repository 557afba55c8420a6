"""The tree of groups, made of the list of groups with their usage, as lines for people or as JSON. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commands.editing.limits import limits_of
from commands.editing.spend_limits import spend_limit_text
from commands.output import cell_text
from policy.limits.kinds import Unit

BAR_CELLS = 20
Group = Mapping[str, Any]
"""A group as the API shows it, with `usage`: None if it is not known. `today`: its item of the usage report, if any."""


@dataclass(frozen=True, slots=True)
class GroupNode:
    """A group and the groups below it, by external id."""

    group: Group
    children: tuple["GroupNode", ...]


def roots_of(groups: Sequence[Group]) -> tuple[GroupNode, ...]:
    """The trees. A group whose parent is not among `groups` is a root."""
    ids = {group["id"] for group in groups}
    below: dict[str | None, list[Group]] = defaultdict(list)
    for group in sorted(groups, key=_external_id):
        parent = group["hierarchy"]["parent_group_id"]
        below[parent if parent in ids else None].append(group)

    def group_node(group: Group) -> GroupNode:
        return GroupNode(group, tuple(map(group_node, below[group["id"]])))

    return tuple(map(group_node, below[None]))


def has_usage_limit(group: Group) -> bool:
    """Return whether its usage has entries."""
    return any(model["usage_limits"] for model in group["effective_models"])


def tree_text(roots: Sequence[GroupNode]) -> str:
    """A line per group, below it its calls and costs, its spend limits, its slugs, and usage limits with a bar each."""
    return "\n".join(line for root in roots for line in _lines(root, "", ""))


def tree_json(roots: Sequence[GroupNode]) -> list[dict[str, Any]]:
    """The groups as the API shows them, with `usage` and `children`."""
    return [{**node.group, "children": tree_json(node.children)} for node in roots]


def bar(usage: int, threshold: int) -> str:
    """Twenty cells. One that is not full shows no full bar, and one that is used no empty one."""
    full = BAR_CELLS
    if usage < threshold:
        full = min(BAR_CELLS - 1, max(usage * BAR_CELLS // threshold, 1 if usage else 0))
    return "█" * full + "░" * (BAR_CELLS - full)


def _lines(node: GroupNode, first: str, rest: str) -> Iterator[str]:
    group = node.group
    yield first + _head(group)
    inner = rest + ("│ " if node.children else "  ")
    if "today" in group:
        yield f"{inner}  {_today(group['today'], is_alone=not node.children)}"
    if spend_limits := group.get("spend_limits"):
        yield f"{inner}  spend  {', '.join(map(spend_limit_text, spend_limits))}"
    for line in _model_lines(group):
        yield f"{inner}  {line}"
    for place, child in enumerate(node.children):
        is_last = place == len(node.children) - 1
        yield from _lines(child, rest + ("└─ " if is_last else "├─ "), rest + ("   " if is_last else "│  "))


def _head(group: Group) -> str:
    name = group["metadata"]["name"]
    words = [cell_text(_external_id(group)), *([cell_text(name)] if name else []), group["id"]]
    return "  ".join(words) + ("  CASCADING" if group["hierarchy"]["limit_enforcement"] == "CASCADING" else "")


def _today(item: Mapping[str, Any] | None, is_alone: bool) -> str:
    """The calls and costs of the day. A group that has, and had, none below it has its own alone."""
    if item is None:
        return "no calls today"
    if is_alone and item["own"]["calls"] == item["calls"]:
        return f"{_calls(item)} today"
    return f"{_calls(item['own'])} today, with groups below {_calls(item)}"


def _calls(totals: Mapping[str, Any]) -> str:
    costs = [f"{amount} {currency}" for currency, amount in (totals["cost"] or {}).items()]
    unpriced = [f"{totals['unpriced_calls']} of them unpriced"] if totals["unpriced_calls"] else []
    return ", ".join([f"{totals['calls']} calls", *costs, *unpriced])


def _model_lines(group: Group) -> Iterator[str]:
    entries = defaultdict[str, list[Mapping[str, Any]]](list)
    for entry in group["usage"] or ():
        entries[entry["slug"]].append(entry)
    for model in group["models"]:
        yield f"{cell_text(model['slug'])}  {', '.join(limits_of(model)) or 'no limits of its own'}"
        for entry in entries[model["slug"]]:
            yield f"  {_usage(entry, group['id'])}"
    if group["usage"] is None:
        yield "usage is not known"


def _usage(entry: Mapping[str, Any], group_id: str) -> str:
    usage = entry["current_usage"]
    threshold = entry["threshold"]
    share = f"{100 * usage // threshold}%" if threshold else "100%"
    source = "" if entry["source_group"] == group_id else f"  set by {entry['source_group']}"
    figures = f"{usage} of {threshold} {entry['type']} {_window(entry['unit'])}"
    return f"{bar(usage, threshold)} {share:>4}  {figures}{source}"


def _window(unit: str) -> str:
    return "today" if unit == Unit.DAY else f"this {unit.lower()}"


def _external_id(group: Group) -> str:
    return str(group["metadata"]["external_entity_id"])
