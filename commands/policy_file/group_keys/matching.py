"""Finds the workspace's key that a policy file means. Pure."""

from collections.abc import Sequence

from commands.policy_file.group_keys.values import GroupKey


class NoKeyError(Exception):
    """The file names a key that cannot be changed. The message says why, and what to do."""


class RotatedKeyError(Exception):
    """The file names a key that a rotation ends. It is left alone: what replaced it has the same settings."""


def key_of_workspace(goal: GroupKey, keys: Sequence[GroupKey]) -> GroupKey | None:
    """The key that `goal` names, of the keys of its group; None if its name is free.

    A rotated key and the one in its place have one name: the name is that of the newer one. What a rotation has ended
    is never changed, so that it ends when it was told to. Raises NoKeyError and RotatedKeyError.
    """
    if goal.prefix is not None:
        key = next((key for key in keys if key.prefix == goal.prefix), None)
        if key is None:
            raise NoKeyError("there is no such key; only a key with a name can be created")
        if key.state == "REPLACED":
            raise RotatedKeyError("it was rotated, and stays as it is; name the key that took its place")
        return key
    same = [key for key in keys if key.name == goal.name and key.state != "REPLACED"]
    same = [key for key in same if key.is_in_use] or same
    if len(same) > 1:
        prefixes = ", ".join(str(key.prefix) for key in same[:5])
        raise NoKeyError(f"several keys of the group have this name; give a prefix: {prefixes}")
    return same[0] if same else None


def names_alone(key: GroupKey, keys: Sequence[GroupKey]) -> bool:
    """Return whether the name of a key in use is that of no other one of its group."""
    return key.name is not None and sum(one.name == key.name and one.is_in_use for one in keys) == 1
