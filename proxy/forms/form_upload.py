"""A form on its way upstream: read from the caller no faster than the upstream takes it. Pure.

Until `model` is found the form is held, as other requests are, and counts against the worker's memory. From then on
only what was just read is held.
"""

from collections import deque

from proxy.capacity.call_load import Load
from proxy.forms.boundary import boundary_of, content_type_of
from proxy.forms.form_reader import FormReader
from proxy.records.messages import Incoming
from proxy.refusals import BodyTooLargeError, MalformedRequestError


class FormUpload:
    """Implements `proxy.exchange.Upload`."""

    __slots__ = ("_incoming", "_load", "_max_bytes", "_pieces", "_reader", "content_type", "length", "received_bytes")

    def __init__(self, incoming: Incoming, load: Load, max_bytes: int) -> None:
        boundary = boundary_of(incoming.header_values("content-type"))
        self.content_type = content_type_of(boundary)
        self.length = incoming.declared_bytes
        self.received_bytes = 0
        self._incoming = incoming
        self._load = load
        self._max_bytes = max_bytes
        self._reader = FormReader(boundary)
        self._pieces: deque[bytes] = deque()

    async def read_model(self) -> str:
        """Read until `model` is known, and return it. Raises what `read` raises."""
        while self._reader.model is None:
            if not await self._read_more():
                raise MalformedRequestError("the form must have a part 'model' that is text")
        return self._reader.model

    @property
    def streaming(self) -> bool:
        """True if the form asks for a stream, as far as it was read."""
        return self._reader.streaming

    def most_answers(self, unless_said: int) -> int:
        """Return how many answers the form asks for. If unknown: at most `unless_said`, and a larger `n` is refused."""
        number = self._reader.n
        if number is None:
            self._reader.most_n = unless_said
            return unless_said
        return max(1, number)

    def rename(self, model: str) -> None:
        """Give the upstream this model. Call it before `read`."""
        grown = self._reader.rename(model)
        declared = self._incoming.declared_bytes
        if declared is not None:
            self.length = declared + grown

    def forbid_state(self) -> None:
        """Refuse parts that name state in the vendor's account. Raises `MalformedRequestError`."""
        self._reader.forbid_state()

    async def read(self) -> bytes:
        """The next bytes for the upstream; b"" at the end of a complete form.

        Raises `MalformedRequestError`, `BodyTooLargeError`, `ShedError` and what `Incoming.read` raises.
        """
        while not self._pieces:
            self._pieces += self._reader.drain()
            if self._pieces:
                break
            self._load.drop()  # all that was held is on its way
            if not await self._read_more():
                self._pieces += self._reader.drain()
                return self._pieces.popleft() if self._pieces else b""
        return self._pieces.popleft()

    async def _read_more(self) -> bool:
        """Read and check the next bytes; False at the end of the form."""
        data = await self._incoming.read()
        if not data:
            self._reader.end()
            return False
        self.received_bytes += len(data)
        if self.received_bytes > self._max_bytes:
            raise BodyTooLargeError(self.received_bytes, self._max_bytes)
        self._load.hold(len(data))
        self._reader.feed(data)
        return True
