"""Reads the keys of a policy file's groups. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from commands.policy_file.group_keys.values import GroupKey, SettingError, settings_from_wire
from commands.policy_file.schema_check import Problem
from commands.policy_file.yaml_text import Place

Item = Mapping[str, Any]


def keys_of(groups: Sequence[Item]) -> Iterator[GroupKey]:
    """Yield the keys of these groups and of those below. The file has no `key_problems`."""
    for _place, group, key in _placed(groups, ("groups",)):
        yield GroupKey(group, key.get("name"), key.get("prefix"), settings_from_wire(key))


def key_problems(groups: Sequence[Item]) -> Iterator[Problem]:
    """Yield what is wrong with the keys, besides their schema."""
    names: set[tuple[str, str | None, str | None]] = set()
    for place, group, key in _placed(groups, ("groups",)):
        if ("name" in key) == ("prefix" in key):
            yield Problem(place, "a key is known by its name or by its prefix; give one of them")
            continue
        name = (group, key.get("name"), key.get("prefix"))  # one key's name may read as another's prefix
        if name in names:
            yield Problem(place, f"the key {name[1] or name[2]} is given twice")
        names.add(name)
        try:
            settings_from_wire(key)
        except SettingError as error:
            yield Problem((*place, error.name), str(error))


def _placed(groups: Sequence[Item], place: Place) -> Iterator[tuple[Place, str, Item]]:
    for index, group in enumerate(groups):
        for number, key in enumerate(group.get("keys", ())):
            yield (*place, index, "keys", number), group["external_entity_id"], key
        yield from _placed(group.get("groups", ()), (*place, index, "groups"))
