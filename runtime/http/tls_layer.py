"""TLS below a protocol, which sees a transport as if the connection were plain.

The event loop's own layer has a read buffer for each connection, cannot close one direction, and when it closes, waits
for the peer's farewell. Here closing is as with plain connections, and those in their handshake can be counted.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

from runtime.http.error_answers import error_answer
from runtime.log_lines import PacedLog

HANDSHAKE_S = 10.0
"""Seconds that a handshake may take."""
READ_BYTES = 32_768
"""The size of a read. OpenSSL keeps the memory of a connection's largest read for as long as the connection lasts."""
_SENT_BYTES = 65_536
"""Bytes that are encrypted before they are sent, for the same reason."""
_LOG_INTERVAL_S = 60.0
_CAPITALS = range(0x41, 0x5B)
"""First bytes of plain HTTP. A TLS handshake begins with 0x16."""
_PLAIN_HTTP = "This port speaks HTTPS: the URL must begin with https://"
log = logging.getLogger(__name__)


class TlsListener:
    """The parts that a listener's connections share. `context`: of the newest certificate; new connections have it.

    `allowed_s` returns for how long a new connection may shake hands, by its transport; 0 closes it. `code_member`: as
    in `FrontLimits`, for whoever speaks plain HTTP.
    """

    def __init__(self, context: ssl.SSLContext, code_member: str) -> None:
        self.context = context
        self.code_member = code_member
        self.allowed_s: Callable[[asyncio.Transport], float] = lambda transport: HANDSHAKE_S
        self.handshakes: dict[TlsLayer, None] = {}
        """The connections in their handshake, the oldest first."""
        self.no_handshakes = asyncio.Event()
        self.no_handshakes.set()
        self.buffer = memoryview(bytearray(READ_BYTES))
        """The read buffer that all connections share, and below it the one for what was decrypted."""
        self.text = memoryview(bytearray(READ_BYTES))
        self._log = PacedLog(log, _LOG_INTERVAL_S)

    def layer(self, make: Callable[[], asyncio.BaseProtocol]) -> "TlsLayer":
        """The protocol of a new connection. `make` makes the one above it, once the handshake is complete."""
        return TlsLayer(self, make)

    def abort_handshakes(self) -> None:
        for layer in list(self.handshakes):
            layer.abort()

    def failed(self, peer: str, reason: str) -> None:
        """Log a handshake that the two sides could not agree in."""
        self._log.warning(
            f"A TLS handshake with {peer} failed ({reason}). If it is a caller of yours: it must trust the certificate"
            " in TOLLGATE_TLS_CERT_FILE, and speak TLS 1.2 or later."
        )


class TlsLayer(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of the plain transport, and the transport of the protocol above. It serves; it never dials."""

    __slots__ = (
        *("_closing", "_deaf", "_first_byte", "_incoming", "_listener", "_make", "_mute", "_outgoing", "_paused"),
        *("_peer_ended", "_plain", "_protocol", "_timer", "_tls"),
    )

    def __init__(self, listener: TlsListener, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._listener = listener
        self._make = make
        self._protocol: asyncio.BaseProtocol | None = None  # until the handshake is complete
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = listener.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._plain: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._first_byte = -1
        self._paused = False
        self._peer_ended = False
        self._closing = False
        self._mute = False  # our end of the stream was sent
        self._deaf = False  # what arrives is dropped

    # --- the plain transport's callbacks ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._plain = cast(asyncio.Transport, transport)
        allowed_s = self._listener.allowed_s(self._plain)
        if not allowed_s:
            self.abort()
            return
        self._listener.handshakes[self] = None
        self._listener.no_handshakes.clear()
        self._timer = asyncio.get_running_loop().call_later(allowed_s, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = self._mute = self._deaf = True
        self._end_handshake()
        if self._protocol is not None:
            self._protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listener.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._deaf:
            return
        self._incoming.write(self._listener.buffer[:nbytes])
        if self._protocol is not None:
            self._read(self._protocol)
            return
        if self._first_byte < 0:
            self._first_byte = self._listener.buffer[0]
        self._shake_hands()

    def eof_received(self) -> bool:
        """The peer has gone, whether it said so inside of TLS or not."""
        if self._protocol is not None and not self._deaf:
            cast(asyncio.Protocol, self._protocol).eof_received()
        return False

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    # --- records ------------------------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except ssl.SSLError as error:
            self._refuse(error)
            return
        self._send()
        self._end_handshake()
        self._protocol = protocol = self._make()
        protocol.connection_made(self)
        if self._incoming.pending:
            self._read(protocol)

    def _refuse(self, error: ssl.SSLError) -> None:
        """End a failed handshake: with an alert, or in plain text for whoever speaks plain HTTP."""
        self._deaf = True
        if self._first_byte in _CAPITALS:
            self._plain.write(error_answer(400, _PLAIN_HTTP, self._listener.code_member))
        else:
            self._send()
            peer = self._plain.get_extra_info("peername")
            self._listener.failed(str(peer[0]) if peer else "a caller", str(error.reason or "no reason"))
        self._plain.close()

    def _end_handshake(self) -> None:
        self._listener.handshakes.pop(self, None)
        if not self._listener.handshakes:
            self._listener.no_handshakes.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass on what has arrived, until the protocol pauses."""
        buffered = protocol if isinstance(protocol, asyncio.BufferedProtocol) else None
        has_more = True
        while has_more and not (self._paused or self._deaf):
            room = self._listener.text if buffered is None else memoryview(buffered.get_buffer(-1))
            try:
                size, has_more = self._decrypt(room)
            except ssl.SSLError:  # not what the peer sent: nothing can be believed any more
                self.abort()
                return
            if size and buffered is not None:
                buffered.buffer_updated(size)
            elif size:
                cast(asyncio.Protocol, protocol).data_received(bytes(room[:size]))
        if self._peer_ended and not self._deaf:
            self._deaf = True
            cast(asyncio.Protocol, protocol).eof_received()
            self.close()
        if not self._mute:
            self._send()  # an answer of TLS itself, such as to a change of keys

    def _decrypt(self, room: memoryview) -> tuple[int, bool]:
        """Fill `room`. Return how far it is filled, and whether there may be more."""
        size = 0
        try:
            while size < len(room):
                count = cast(int, self._tls.read(len(room) - size, cast(bytearray, room[size:])))
                if not count:
                    self._peer_ended = True
                    return size, False
                size += count
                if not (self._incoming.pending or self._tls.pending()):
                    return size, False  # another read would only raise an error, which costs more than to ask
        except ssl.SSLWantReadError:
            return size, False
        return size, True

    def _encrypt(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(cast(bytes, rest[:_SENT_BYTES])) :]
            if self._outgoing.pending >= _SENT_BYTES:
                self._send()

    def _send(self) -> None:
        if self._outgoing.pending:
            self._plain.write(self._outgoing.read())

    def _say_farewell(self) -> None:
        """Send the end of our stream, without which the peer must take it for cut off."""
        if self._mute or self._protocol is None:
            return
        with contextlib.suppress(ssl.SSLError):  # it wants the peer's farewell, too; we do not wait for it
            self._tls.unwrap()
        self._send()
        self._mute = True

    # --- the transport of the protocol above --------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._mute:
            return
        try:
            for data in list_of_data:
                self._encrypt(data)
        except ssl.SSLError:
            self.abort()
            return
        self._send()

    def close(self) -> None:
        if not self._closing:
            self._say_farewell()
            self._closing = self._deaf = True
            self._plain.close()

    def abort(self) -> None:
        self._end_handshake()
        self._closing = self._mute = self._deaf = True
        self._plain.abort()

    def write_eof(self) -> None:
        """Send our end of the stream, and drop what still arrives."""
        if not self._mute:
            self._say_farewell()
            self._deaf = True
            self._plain.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._closing or self._plain.is_closing()

    def pause_reading(self) -> None:
        self._paused = True
        self._plain.pause_reading()

    def resume_reading(self) -> None:
        """Read on: first what has arrived, in a later turn, as a plain transport does."""
        self._paused = False
        asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._deaf and self._protocol is not None:
            self._read(self._protocol)
        if not (self._paused or self._plain.is_closing()):
            self._plain.resume_reading()

    def is_reading(self) -> bool:
        return not self._paused

    def get_write_buffer_size(self) -> int:
        return self._plain.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._plain.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._tls.context
        return self._tls if name == "ssl_object" else self._plain.get_extra_info(name, default)

    @property
    def _sendfile_compatible(self) -> None:
        """Tell aiohttp, which asks the event loop to send a file past this layer, to write the file itself."""
        raise NotImplementedError
