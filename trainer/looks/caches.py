"""Tells control what is in the projects' caches, and removes those of deleted projects.

See docs/reference/training.md#caches.
"""

import asyncio
import logging
from collections.abc import Iterable

from policy.training.caches import CacheSummary
from runtime.log_lines import cause_of
from trainer.backend import Backend, BackendAwayError
from trainer.control import Control, ControlAwayError, ControlRefusedError

_LOOK_S = 1.0
_PAUSE_S = 30.0
log = logging.getLogger(__name__)


class Caches:
    """`run` looks once a second. A summary that control does not take while it is away is sent when it is back."""

    def __init__(self, backend: Backend, control: Control) -> None:
        self._backend = backend
        self._control = control
        self._untold: dict[str, CacheSummary] = {}
        self._forgotten: frozenset[str] = frozenset()

    def forget(self, project_ids: Iterable[str]) -> None:
        """Take the projects whose caches are to be removed, as control named them last."""
        self._forgotten = frozenset(project_ids)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                await self.look()
                await asyncio.sleep(_LOOK_S)
            except (BackendAwayError, ControlAwayError) as error:
                log.debug("Caches are looked at again (%s).", cause_of(error))
                await asyncio.sleep(_LOOK_S)
            except Exception:
                log.exception("Caches are looked at again in %g s. Please report this bug.", _PAUSE_S)
                await asyncio.sleep(_PAUSE_S)

    async def look(self) -> None:
        """One round. BackendAwayError, ControlAwayError."""
        for summary in await self._backend.cache_summaries():
            self._untold[summary.project_id] = summary
        for project_id, summary in list(self._untold.items()):
            try:
                await self._control.cache(summary)
            except ControlRefusedError as error:
                log.warning(
                    "The cache of project %s is not shown: control refused it (%s).", project_id, cause_of(error)
                )
            del self._untold[project_id]
        for project_id in sorted(self._forgotten):
            await self._forget(project_id)

    async def _forget(self, project_id: str) -> None:
        try:
            await self._backend.forget_cache(project_id)
        except BackendAwayError as error:
            log.debug("The cache of project %s is removed later (%s).", project_id, cause_of(error))
            return
        await self._control.cache_removed(project_id)
        self._forgotten -= {project_id}
