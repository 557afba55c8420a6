"""Limits of a caller's time, and of the bytes that the server reads ahead of a request's turn."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """Limits of one request and its answer.

    A body may pause for `body_idle_s`; after that it must keep up `body_bytes_per_s`. `stall_s`: how long an answer
    may wait for the caller to read.
    """

    body_idle_s: float = 30.0
    body_bytes_per_s: float = 8192.0
    stall_s: float = 300.0


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of a connection. `head_timeout_s`: from a head's first byte to its last.

    While draining: `drain_handshake_s` is how long a TCP handshake in progress may take, `drain_idle_s` how long an
    idle connection may still bring a request, `drain_linger_s` how long its peer may take to close after our FIN.
    """

    keepalive_timeout_s: float = 75.0
    head_timeout_s: float = 15.0
    lingering_s: float = 5.0
    """Seconds in which a connection keeps reading after an answer that was sent before the whole request arrived."""
    drain_handshake_s: float = 0.1
    drain_idle_s: float = 1.0
    drain_linger_s: float = 0.5
    max_line_bytes: int = 8190
    """Longest request target."""
    max_field_bytes: int = 16_380
    max_headers: int = 128
    watch_interval_s: float = 1.0
    """Seconds between two checks of all connections against these timeouts."""
    exchange: ExchangeLimits = field(default_factory=ExchangeLimits)
