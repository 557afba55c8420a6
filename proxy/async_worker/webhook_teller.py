"""Makes one try to tell a webhook a result: checks the address, signs the body, sends it, judges the answer.

A result may have 100 MB: it is read from the queue twice, chunk by chunk, to sign it and to send it. What is said of
troubles names no address.

See docs/reference/events-and-webhooks.md#results-of-asynchronous-requests.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from policy.hosts import EgressRules, HostRuleError, Reach, check_base_url
from policy.sealing import SealedWithUnknownKeyError, unseal
from policy.snapshot import SigningSecrets
from proxy.async_requests.deliveries import ResultBody, SignedHeaders
from proxy.async_requests.queues import QueueUnavailableError
from proxy.async_requests.requests import Delivery
from proxy.async_worker.delivery import AnswerLostError
from proxy.errors import PolicyUnavailableError, UpstreamError
from proxy.parts import Directory, UpstreamClient
from proxy.records.messages import UpstreamAnswer, UpstreamCall
from proxy.records.request_fields import RequestFields
from runtime.exhaustion import is_exhausted

SMALL_BYTES = 256 << 10
"""A body up to this size is sent in one go, on a kept connection if there is one."""
READ_BYTES = 4096
"""Most bytes of a receiver's answer that are read, so that its connection can be used again."""
READ_TIMEOUT_S = 1.0
FIRST_SECRET_S = 3.0
"""Seconds that a result waits for control to confirm that its workspace has no signing secret."""
BUFFERED_BYTES = 16 << 20
"""Bytes of a body that may still be on their way, or unread by the receiver, when its last piece was handed over."""
USER_AGENT = "Tollgate-Webhooks/1"


class AnswerChunks(Protocol):
    """Storage of the model's answer."""

    async def chunk(self, delivery: Delivery, number: int) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class TellerTimeouts:
    """Seconds that a receiver may take to answer once it has the body, to take more of the body, and for all."""

    head_s: float = 15.0
    progress_s: float = 30.0
    whole_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TellerParts:
    """Counterparts of the teller. `keys`: those of TOLLGATE_SECRET_KEY. `wall_ms`: milliseconds since 1970."""

    chunks: AnswerChunks
    directory: Directory
    upstream: UpstreamClient
    egress: EgressRules
    keys: Sequence[bytes]
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    timeouts: TellerTimeouts = TellerTimeouts()
    on_exhausted: Callable[[Exception], None] = lambda error: None
    """Callback for an error that means: this process, or the machine, has run out of something."""


@dataclass(frozen=True, slots=True)
class _Message:
    """`whole`: the body, if it is small."""

    headers: dict[str, str]
    size_bytes: int
    whole: bytes | None


class WebhookTeller:
    """Implements `Teller`."""

    def __init__(self, parts: TellerParts) -> None:
        self._parts = parts

    async def tell(self, delivery: Delivery) -> str:
        """Send a delivery. Returns why the webhook has not accepted it; empty if it has. Raises `AnswerLostError`."""
        try:
            check_base_url(delivery.webhook_endpoint, self._parts.egress)
            return await self._post(delivery, await self._signing_secrets(delivery.deployment.workspace_id))
        except HostRuleError:
            return "the URL may not be called"
        except SealedWithUnknownKeyError:
            return "no key of TOLLGATE_SECRET_KEY opens the workspace's signing secret"
        except PolicyUnavailableError:
            return "this machine has no policy, so the signing secret is not known"
        except QueueUnavailableError:
            return "the model's answer could not be read from Redis"
        except TimeoutError:
            return "the receiver did not answer in time"
        except UpstreamError as error:
            return str(error)
        except Exception as error:
            if not is_exhausted(error):
                raise
            self._parts.on_exhausted(error)
            return "this machine has run out of file descriptors, memory, threads or local ports"

    async def _post(self, delivery: Delivery, secrets: Sequence[str]) -> str:
        message = await self._signed(delivery, secrets)
        async with asyncio.timeout(self._parts.timeouts.head_s) as limit:
            answer = await self._parts.upstream.send(self._call(delivery, message, limit))
            limit.reschedule(None)
            await _read_a_little(answer)
        return "" if 200 <= answer.status < 300 else f"the receiver answered {answer.status}"

    def _call(self, delivery: Delivery, message: _Message, limit: asyncio.Timeout) -> UpstreamCall:
        upload = None
        if message.whole is None:
            upload = ResultUpload(self._body(delivery), message.size_bytes, limit, self._parts.timeouts)
        return UpstreamCall(
            delivery.webhook_endpoint,
            "POST",
            RequestFields({"user-agent": USER_AGENT, **message.headers}),
            message.whole or b"",
            time.perf_counter() + self._parts.timeouts.whole_s,
            READ_TIMEOUT_S,
            Reach.CUSTOMER,
            upload,
        )

    async def _signed(self, delivery: Delivery, secrets: Sequence[str]) -> _Message:
        signed = SignedHeaders(delivery.request_id, self._parts.wall_ms() // 1000, secrets)
        pieces: list[bytes] = []
        async for piece in self._body(delivery):
            signed.add(piece)
            if signed.size_bytes <= SMALL_BYTES:
                pieces.append(piece)
        whole = b"".join(pieces) if signed.size_bytes <= SMALL_BYTES else None
        return _Message(signed.headers(), signed.size_bytes, whole)

    async def _body(self, delivery: Delivery) -> AsyncIterator[bytes]:
        """The body piece by piece. Raises `AnswerLostError`."""
        body = ResultBody(delivery)
        answer = delivery.answer
        yield body.begin()
        if answer is not None:
            left_bytes = answer.size_bytes
            for number in range(answer.chunks):
                chunk = await self._parts.chunks.chunk(delivery, number)
                if chunk is None:
                    raise AnswerLostError
                left_bytes -= len(chunk)
                for part in body.chunk_parts(chunk):
                    yield part
                    await asyncio.sleep(0)
            if left_bytes:
                raise AnswerLostError
        yield body.end()

    async def _signing_secrets(self, workspace_id: str) -> list[str]:
        """The secrets that sign now. Raises `PolicyUnavailableError` or `SealedWithUnknownKeyError`.

        A workspace's first one may be younger than this machine's policy.
        """
        if secrets := self._known_secrets(workspace_id):
            return secrets
        with contextlib.suppress(PolicyUnavailableError, TimeoutError):  # then what is known here counts
            async with asyncio.timeout(FIRST_SECRET_S):
                await self._parts.directory.confirm_unknown()
        return self._known_secrets(workspace_id)

    def _known_secrets(self, workspace_id: str) -> list[str]:
        workspace = self._parts.directory.workspace(workspace_id)
        sealed = workspace.signing_secrets if workspace is not None else None
        if sealed is None:
            return []
        secrets = [unseal(self._parts.keys, workspace_id, sealed.current)]
        if (previous := self._previous(sealed)) is not None:
            with contextlib.suppress(SealedWithUnknownKeyError):  # receivers know the current one, too
                secrets.append(unseal(self._parts.keys, workspace_id, previous))
        return secrets

    def _previous(self, sealed: SigningSecrets) -> str | None:
        return sealed.previous if self._parts.wall_ms() < sealed.previous_until_ms else None


class ResultUpload:
    """A result that is sent while it is read from the queue. Implements `Upload`. Moves `limit` with each piece."""

    content_type = "application/json"

    def __init__(
        self, pieces: AsyncIterator[bytes], size_bytes: int, limit: asyncio.Timeout, timeouts: TellerTimeouts
    ) -> None:
        self.length: int | None = size_bytes
        self.received_bytes = 0
        self._pieces = pieces
        self._limit = limit
        self._timeouts = timeouts
        self._began_at = 0.0

    def rename(self, model: str) -> None:
        """Do nothing: results name no model."""

    async def read(self) -> bytes:
        """The next piece; it is asked for when the connection has room for it."""
        now = asyncio.get_running_loop().time()
        self._began_at = self._began_at or now
        self._allow_until(now + self._timeouts.progress_s)
        piece = await anext(self._pieces, b"")
        self.received_bytes += len(piece)
        if not piece:
            self._allow_until(now + self._timeouts.head_s + self._rest_s(now))
        return piece

    def _rest_s(self, now: float) -> float:
        """Return how long the receiver needs for the bytes still on their way, at the pace that it has shown."""
        return (now - self._began_at) * min(1.0, BUFFERED_BYTES / max(1, self.received_bytes))

    def _allow_until(self, at: float) -> None:
        if not self._limit.expired():
            self._limit.reschedule(at)


async def _read_a_little(answer: UpstreamAnswer) -> None:
    """Read a short answer to its end. A longer one is cut off: its status is known."""
    read_bytes = 0
    try:
        with contextlib.suppress(UpstreamError, TimeoutError):
            async with asyncio.timeout(READ_TIMEOUT_S):
                while read_bytes < READ_BYTES and (piece := await answer.read()):
                    read_bytes += len(piece)
    finally:
        answer.close()
