"""Asks wake hooks in the background, each in a task of its own.

Whether it is this process' turn is decided in the database (`resources/platform/wakes.py`). Nothing is queued for a
parked call: its machine reports it again. A `wake` without a call is tried again here, for about a minute.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

import orjson

from control.edges.sql.store import Store, UncancelledWork
from control.errors import DatabaseUnavailableError
from control.resources.platform.wakes import NoClaim, WakeClaim, WakeRequest, claim_wake, finish_wake

AT_ONCE = 1000
AT_ONCE_PER_WORKSPACE = 20
"""The hooks of a workspace that are asked at once. One that hangs keeps its place for the client's timeout."""
TRIES = 60
TRY_AGAIN_S = 1.0
_CLAIMS_AT_ONCE = 4
"""The transactions at once that decide whose turn it is: others that write to the database wait for few of them."""
log = logging.getLogger(__name__)


class HookClient(Protocol):
    """Posts to one hook. Returns what went wrong, or ""; never raises."""

    async def post(self, url: str, body: bytes) -> str: ...


class WakeSender:
    """One process's sender. Calls `count` with each outcome: `answered` or `failed`."""

    def __init__(self, store: Store, client: HookClient, count: Callable[[str], None]) -> None:
        self._store = store
        self._client = client
        self._count = count
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._per_workspace: Counter[str] = Counter()
        self._claims = asyncio.Semaphore(_CLAIMS_AT_ONCE)
        self._transactions = UncancelledWork()

    def ask(self, request: WakeRequest) -> bool:
        """Ask the hook, unless it is being asked. False if too many others are."""
        id = request.deployment.id
        workspace_id = request.workspace_id
        if id in self._asking:
            return True
        if len(self._asking) >= AT_ONCE or self._per_workspace[workspace_id] >= AT_ONCE_PER_WORKSPACE:
            return False
        task = asyncio.create_task(self._ask_until_answered(request), name=f"wake {id}")
        self._asking[id] = task
        self._per_workspace[workspace_id] += 1
        task.add_done_callback(lambda ended_task: self._ended(request, ended_task))
        return True

    async def close(self) -> None:
        """Cancel the questions that are under way. Their turns pass with the lease."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transactions.finish()

    def _ended(self, request: WakeRequest, task: asyncio.Task[None]) -> None:
        del self._asking[request.deployment.id]
        self._per_workspace[request.workspace_id] -= 1
        if not self._per_workspace[request.workspace_id]:
            del self._per_workspace[request.workspace_id]
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, DatabaseUnavailableError):
            log.warning(
                "Wake hook of deployment %s not settled: database unreachable (%s)."
                " It is asked again when the database is back and calls are still parked.",
                request.deployment.id,
                error.reason,
            )
        else:
            log.error(
                "Waking deployment %s failed by a bug (%s). Please report this.",
                request.deployment.id,
                type(error).__name__,
                exc_info=error,
            )

    async def _ask_until_answered(self, request: WakeRequest) -> None:
        for _ in range(TRIES if request.reason == "wake" else 1):
            async with self._claims:
                claim = await self._transactions.run(claim_wake(self._store, request))
            if claim is NoClaim.NOT_NEEDED or (isinstance(claim, WakeClaim) and await self._post(request, claim)):
                return
            if request.reason == "wake":
                await asyncio.sleep(TRY_AGAIN_S)

    async def _post(self, request: WakeRequest, claim: WakeClaim) -> bool:
        ids = {"model_id": claim.model_id, "deployment_id": claim.deployment_id}
        body = orjson.dumps({**ids, "reason": request.reason, "parked": request.parked})
        problem = await self._client.post(claim.wake_url, body)
        async with self._claims:
            pause_ms = await self._transactions.run(finish_wake(self._store, claim, not problem))
        self._count("failed" if problem else "answered")
        host = urlsplit(claim.wake_url).hostname  # never the path: it may hold a secret
        if problem:
            log.warning(
                "Wake hook of deployment %s at %s failed: %s. Calls stay parked, and it is asked again after %.0f s."
                " Check the launcher and the deployment's wake_url.",
                *(claim.deployment_id, host, problem, pause_ms / 1000),
            )
        else:
            log.info("Wake hook of deployment %s at %s answered.", claim.deployment_id, host)
        return not problem
