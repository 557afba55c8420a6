"""The Unix users that nodes run as: one for all jobs, or, of a range of user ids, one for each job.

A process can read the environment, which holds secrets, of every process of its own user. So jobs of one user can read
each other's secrets, and jobs with an id of their own cannot.

See docs/reference/training.md#users-of-local.
"""

import grp
import os
import pwd
import random
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from trainer.backend import BackendAwayError

_RANGE = re.compile(r"([1-9][0-9]{3,9})-([1-9][0-9]{3,9})")
_LAST_ID = 2**32 - 3
"""The two ids above mean "no user" to the kernel."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The user and group that a job's nodes run as."""

    uid: int
    gid: int

    @property
    def has_name(self) -> bool:
        try:
            pwd.getpwuid(self.uid)
        except KeyError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class JobUsers:
    """`ids`: those that jobs may have. `gid`: the group of all; None: each has the group of its own number."""

    ids: range
    gid: int | None = None

    @classmethod
    def of(cls, setting: str) -> "JobUsers":
        """The users that TOLLGATE_TRAINING_USER names. Raises BackendAwayError if nodes cannot run as them."""
        match = _RANGE.fullmatch(setting)
        users = cls._by_name(setting) if match is None else cls._by_number(int(match[1]), int(match[2]))
        if os.geteuid() != 0 and users.ids != range(os.geteuid(), os.geteuid() + 1):
            raise BackendAwayError("TOLLGATE_TRAINING_USER: only a trainer that runs as root can run jobs as another")
        return users

    @classmethod
    def _by_name(cls, name: str) -> "JobUsers":
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            raise BackendAwayError(f"TOLLGATE_TRAINING_USER: this machine has no user {name}") from None
        return cls(range(user.pw_uid, user.pw_uid + 1), user.pw_gid)

    @classmethod
    def _by_number(cls, first: int, last: int) -> "JobUsers":
        ids = range(first, last + 1)
        if not ids or last > _LAST_ID:
            raise BackendAwayError(f"TOLLGATE_TRAINING_USER: expected a user's name, or FIRST-LAST up to {_LAST_ID}")
        names = [user.pw_name for user in pwd.getpwall() if user.pw_uid in ids]
        names += [group.gr_name for group in grp.getgrall() if group.gr_gid in ids]
        if names:
            raise BackendAwayError(f"TOLLGATE_TRAINING_USER: {names[0]} has an id of this range. Name unused ids")
        return cls(ids)

    @property
    def is_one_for_all(self) -> bool:
        return self.gid is not None

    def check_reach(self, directory: Path) -> None:
        """Raises BackendAwayError if these users may not pass through a directory on the way to this one."""
        owner = self._owner(self.ids[0])
        for place in (directory, *directory.parents):
            status = place.stat()
            bit = stat.S_IXUSR if status.st_uid == owner.uid else stat.S_IXGRP if status.st_gid == owner.gid else 1
            if not status.st_mode & bit:
                raise BackendAwayError(
                    f"TOLLGATE_TRAINING_USER: user {owner.uid} may not enter {place}. Set TOLLGATE_TRAINING_DIR to a"
                    " directory that every user may pass through"
                )

    def check_number(self, nodes: int) -> None:
        """Raises BackendAwayError if so many jobs at a time, of a node each, need more ids."""
        if not self.is_one_for_all and len(self.ids) < nodes:
            raise BackendAwayError(
                f"TOLLGATE_TRAINING_USER: {len(self.ids)} user ids for up to {nodes} jobs at a time. Name a larger"
                " range, or fewer nodes in TOLLGATE_TRAINING_CAPACITY"
            )

    def choose(self, running: Collection[int], present: Collection[int]) -> Owner:
        """The user of a new job: none that `running` has and, if there is another, none whose files are `present`.

        At random, so that what a job leaves outside of its directory is not the next one's.
        """
        if self.is_one_for_all:
            return self._owner(self.ids[0])
        for busy in ({*running, *present}, set(running)):
            some = random.sample(self.ids, min(len(self.ids), len(busy) + 1))
            free = [uid for uid in some if uid not in busy]
            if free:
                return self._owner(free[0])
        raise RuntimeError("more jobs run than there are user ids")

    def _owner(self, uid: int) -> Owner:
        return Owner(uid, uid if self.gid is None else self.gid)
