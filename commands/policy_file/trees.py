"""Group trees by external id: the path up, and parents before children. Pure."""

from collections.abc import Mapping, Sequence

from commands.policy_file.values import Group
from policy.limits.groups import MAX_DEPTH


def path_up(group: Group, groups: Mapping[str, Group]) -> list[Group]:
    """The group and its ancestors, as far as they are known; longer than MAX_DEPTH for a cycle, and then cut off."""
    path = [group]
    while len(path) <= MAX_DEPTH and path[-1].parent is not None and path[-1].parent in groups:
        path.append(groups[path[-1].parent])
    return path


def parents_first(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The same groups; those of one level keep their order."""
    by_id = {group.external_entity_id: group for group in groups}
    return tuple(sorted(groups, key=lambda group: len(path_up(group, by_id))))
