"""The queue for workers that run requests: start, renew, store, finish, sweep."""

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any

from proxy.async_requests.endings import ANSWER_LOST
from proxy.async_requests.queues import HELD_S, RENEW_INTERVAL_S, QueueUnavailableError, RequestUnknownError
from proxy.async_requests.requests import Again, AttemptRef, DeploymentRef, Outcome, RequestAttempt, Work
from proxy.edges.redis.async_queue import records
from proxy.edges.redis.async_queue.client import QueueClient, keys_of
from proxy.edges.redis.async_queue.inputs import INCOMPLETE
from proxy.edges.redis.async_queue.leases import by_workspace
from proxy.edges.redis.async_queue.repeats import UNKNOWN, Write
from runtime.redis.script import Argument

_CHANNEL = "tga:hints"
"""The channel on which scripts name a workspace in which something became startable or due."""
_NO_ROOM = 2
"""The script's reply to a chunk for which there is no room now."""
SWEEP_MOST = 100
"""Requests that one call deals with: about 2 ms of Redis' time, as it may also count limits."""


class RedisAttemptQueue:
    """Implements `AttemptQueue`. `timeout_s`: of a request, from the start of its first attempt. `max_answer_bytes`: of
    the answers of one workspace that wait for their webhooks."""

    def __init__(self, client: QueueClient, timeout_s: float, max_answer_bytes: int) -> None:
        self._client = client
        self._timeout_ms = int(timeout_s * 1000)
        self._max_answer_bytes = max_answer_bytes
        self._unknown_since: dict[str, float] = {}
        """Requests that Redis did not know lately, and since when."""

    def queue_hints(self) -> AsyncGenerator[str, None]:
        return self._client.commands.subscribed(_CHANNEL, self._client.commands.report)

    async def workspaces(self) -> Sequence[str]:
        return await self._client.index.all()

    async def sweep(self, workspace_id: str) -> Work:
        key = keys_of(workspace_id)
        if not await self._client.repeats.may_decide():
            return Work({}, 0, 0)
        reply = await self._client.commands.run("sweep", key, SWEEP_MOST, self._max_answer_bytes)
        await self._client.holdings.give_back_doubtful(workspace_id, key)
        if reply[1]:
            await self._client.index.add(workspace_id)  # in case the index was deleted
        else:
            await self._client.index.forget(workspace_id)
        return records.work_of(workspace_id, reply)

    async def start(self, deployment: DeploymentRef, holder: str) -> RequestAttempt | None:
        workspace_id = deployment.workspace_id
        deployment_id = deployment.deployment_id
        holdings = self._client.holdings
        key = keys_of(workspace_id)
        if not await self._client.repeats.may_decide() or not holdings.may_begin(workspace_id):
            return None
        async with holdings.beginning(workspace_id, holder):
            bounds = self._timeout_ms, self._max_answer_bytes
            reply = await self._client.commands.run("start", key, deployment_id, holder, *bounds)
        if reply is None:
            return None
        attempt, pieces = records.attempt_of(workspace_id, deployment_id, holder, reply)
        holdings.hold(workspace_id, attempt.ref.request_id)
        if pieces == 0:
            return attempt
        attempt_with_input: RequestAttempt | None = None
        try:
            async with holdings.beginning(workspace_id, holder):
                attempt_with_input = await self._with_input(attempt, pieces)
        finally:
            if attempt_with_input is None:
                holdings.release(workspace_id, [attempt.ref.request_id])
        return attempt_with_input

    async def _with_input(self, attempt: RequestAttempt, pieces: int) -> RequestAttempt | None:
        """Add the large input to an attempt. None if the attempt or its input is lost meanwhile."""
        model_input = BytesIO()
        renewed_at = time.monotonic()
        for number in range(pieces):
            if time.monotonic() - renewed_at >= RENEW_INTERVAL_S:
                renewed_at = time.monotonic()
                if await self.renew([attempt.ref]):
                    return None
            piece = await self._piece(attempt.ref, number)
            if piece is None:
                arguments: list[Argument] = [*records.attempt_arguments(attempt.ref), *records.input_lost_arguments()]
                await self._write("finish", attempt.ref, arguments)
                return None
            model_input.write(piece)
        return replace(attempt, model_input=model_input.getvalue())

    async def _piece(self, ref: AttemptRef, number: int) -> bytes | None:
        """Read a piece, twice if needed: after a crash of Redis another process may still be storing it again."""
        where = keys_of(ref.deployment.workspace_id), ref.request_id, number
        with suppress(QueueUnavailableError):
            if (piece := await self._client.inputs.piece(*where)) is not None:
                return piece
        await self._client.repeats.quiet_is_over()
        return await self._client.inputs.piece(*where)

    async def renew(self, attempts: Collection[AttemptRef]) -> Collection[AttemptRef]:
        lost_refs: list[AttemptRef] = []
        for workspace_id, refs in by_workspace(attempts):
            arguments = [argument for ref in refs for argument in records.attempt_arguments(ref)]
            reply = await self._client.commands.run("renew", keys_of(workspace_id), self._timeout_ms, *arguments)
            lost_here = [refs[place - 1] for place in reply]
            self._client.holdings.release(workspace_id, [ref.request_id for ref in lost_here])
            lost_refs += lost_here
        return lost_refs

    async def store(self, attempt: AttemptRef, number: int, chunk: bytes) -> bool:
        if number:  # small answers wait for nobody
            await self._client.pace.wait(len(chunk))
        arguments = *records.attempt_arguments(attempt), number, chunk
        once = (*arguments, self._max_answer_bytes)
        again = (*arguments, "")
        reply: int = await self._write("store", attempt, once, again)
        return reply != _NO_ROOM

    async def finish(self, attempt: AttemptRef, outcome: Outcome) -> bool:
        arguments = *records.attempt_arguments(attempt), *records.outcome_arguments(outcome)
        reply: int | bytes = await self._write("finish", attempt, arguments)
        if reply == INCOMPLETE:
            return await self.finish(attempt, Again(0, ANSWER_LOST))
        self._client.holdings.release(attempt.deployment.workspace_id, [attempt.request_id])
        return reply == 1

    async def fail_deployment(self, deployment: DeploymentRef) -> int:
        await self._client.repeats.quiet_is_over()
        failed = 0
        last = SWEEP_MOST
        while last >= SWEEP_MOST:
            last = await self._client.commands.run(
                "fail_deployment", keys_of(deployment.workspace_id), deployment.deployment_id, SWEEP_MOST
            )
            failed += last
            await asyncio.sleep(0)
        return failed

    async def report_standing(self, deployment: DeploymentRef, ready: bool) -> None:
        ids = deployment.deployment_id, deployment.model_id
        await self._client.commands.run(
            "standing", keys_of(deployment.workspace_id), *ids, "ready" if ready else "parked"
        )

    async def _write(
        self, name: str, attempt: AttemptRef, once: Sequence[Argument], again: Sequence[Argument] | None = None
    ) -> Any:
        """Run a script that changes an attempt. `again`: its own arguments when it is sent again, if they differ."""
        key = keys_of(attempt.deployment.workspace_id)
        id = attempt.request_id
        arguments = self._timeout_ms, 0, *once
        repeated = self._timeout_ms, 1, *(once if again is None else again)
        supply = partial(self._client.repeats.store_again, key, id)
        reply = await self._client.repeats.write(
            Write(name, key, id, arguments, repeated, supply=supply), lambda reply: reply == 1
        )
        if reply == UNKNOWN:
            return self._unknown(id)
        self._unknown_since.pop(id, None)
        return reply

    def _unknown(self, request_id: str) -> int:
        """Raise, as the request may be submitted again. Return 0, "no longer held", if it was not in a lease's time."""
        now = time.monotonic()
        self._unknown_since = {id: at for id, at in self._unknown_since.items() if now - at < 2 * HELD_S}
        if now - self._unknown_since.setdefault(request_id, now) >= HELD_S:
            return 0
        raise RequestUnknownError("Redis does not know the request, which may be about to be submitted again")
