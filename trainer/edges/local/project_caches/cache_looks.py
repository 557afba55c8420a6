"""Decides when a project's cache is looked at: after each job that has it, and every 30 s while one runs."""

import time
from collections.abc import Callable, Mapping

EVERY_S = 30.0


class DueSummaries:
    """Remembers when each cache was looked at last. After a restart of the trainer all are due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at: dict[str, float] = {}
        self._told_ends: set[str] = set()
        self._left_over: set[str] = set()

    def forget(self, ended: Mapping[str, str]) -> None:
        """Remember the projects of ended attempts that nobody will name again, if they were not looked at since."""
        self._left_over |= {project_id for attempt, project_id in ended.items() if attempt not in self._told_ends}

    def due(self, running: Mapping[str, str], ended: Mapping[str, str]) -> list[str]:
        """The projects to look at now, once each. Both arguments: projects by attempt."""
        now = self._clock()
        projects = {project_id for attempt, project_id in ended.items() if attempt not in self._told_ends}
        projects |= self._left_over
        self._left_over = set()
        self._told_ends = set(ended)
        for project_id in set(running.values()):
            if now - self._looked_at.get(project_id, -EVERY_S) >= EVERY_S:
                projects.add(project_id)
        self._looked_at = {id: at for id, at in self._looked_at.items() if id in running.values()}
        self._looked_at |= dict.fromkeys(projects, now)
        return sorted(projects)
