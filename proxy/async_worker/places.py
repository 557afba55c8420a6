"""Places for attempts in this process, and the part of them that one workspace or deployment may have.

Also the payloads in memory, which are released as soon as they are written: the model may then take an hour to answer.
Something stays free for the next workspace, and for the next deployment of each: an attempt may take an hour.

See docs/reference/inference.md#capacity.
"""

from proxy.async_requests.requests import DeploymentRef
from proxy.capacity.call_load import Load
from proxy.capacity.worker_capacity import Capacity, CapacityLimits
from proxy.refusals import ShedError

PIECE_BYTES = 256 << 10
MAX_UNSENT_BYTES = 256 << 20
"""No further attempt begins while payloads of this size wait for their replicas to read them."""


class Places:
    """The places for attempts. `unsent_bytes`: payloads in memory."""

    def __init__(self, most: int, workspace_share: float) -> None:
        self._capacity = Capacity(CapacityLimits(max_in_flight=most, workspace_share=workspace_share))
        self.unsent_bytes = 0

    @property
    def taken(self) -> int:
        return self._capacity.in_flight

    @property
    def is_full(self) -> bool:
        return self.taken >= self._capacity.limits.max_in_flight or self.holds_too_much

    @property
    def holds_too_much(self) -> bool:
        return self.unsent_bytes >= MAX_UNSENT_BYTES

    def acquire(self, deployment: DeploymentRef) -> Load | None:
        """A place for an attempt, to be left at its end. None if the deployment may have no further one now."""
        if self.is_full:
            return None
        place = self._capacity.enter()
        try:
            place.claim(deployment.workspace_id, deployment.deployment_id)
        except ShedError:
            place.leave()
            return None
        return place


class Payload:
    """The payload of one attempt: a body that is sent at most once, and taken piece by piece as it is written."""

    def __init__(self, text: bytes, places: Places) -> None:
        self._text = text
        self._places = places
        self.size_bytes = len(text)
        places.unsent_bytes += self.size_bytes

    def upload(self) -> "PayloadUpload":
        """The body of one request to a replica. Only one of them may be read."""
        return PayloadUpload(self)

    def piece(self, offset: int) -> bytes:
        """The bytes at `offset`; b"" at the end, and then no more is kept."""
        piece = self._text[offset : offset + PIECE_BYTES]
        if not piece:
            self.release()
        return piece

    def release(self) -> None:
        """Drop it. Idempotent."""
        if self._text:
            self._places.unsent_bytes -= self.size_bytes
            self._text = b""


class PayloadUpload:
    """Implements `proxy.forms.upload.Upload`: the client uses no connection for it that may be stale."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self.content_type = "application/json"
        self.length: int | None = payload.size_bytes
        self.received_bytes = payload.size_bytes

    def rename(self, model: str) -> None:
        raise NotImplementedError("a payload is sent as it is")

    async def read(self) -> bytes:
        piece = self._payload.piece(self._offset)
        self._offset += len(piece)
        return piece

    _offset = 0
