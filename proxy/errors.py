"""Failures that parts of the proxy tell each other. `refusals.py` says what each means to the caller."""


class CallerGoneError(Exception):
    """The caller disconnected (499)."""


class UpstreamError(Exception):
    """An exchange with an upstream failed; the subclass says how. The text never names a host or a credential."""


class UpstreamUnreachableError(UpstreamError):
    """No connection (503): refused, not resolved, TLS failed, timed out, or an address that may not be dialled."""


class UpstreamResetError(UpstreamError):
    """The connection was reset or closed before the head, or the response was not HTTP (502)."""


class UpstreamCutError(UpstreamError):
    """The response broke off after its head (502)."""


class UpstreamTimeoutError(UpstreamError):
    """The deadline passed, or a stream was silent for longer than the idle timeout (504)."""


class UntranslatableError(Exception):
    """The request cannot be expressed in the target's dialect; `field` is the path of the member that cannot (400)."""

    def __init__(self, field: str, reason: str = "the target of this slug has nothing like it") -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class PolicyUnavailableError(Exception):
    """No policy to decide by (503): there is no policy replica yet, or control could not confirm an unknown key."""


class CountersUnavailableError(Exception):
    """Redis is unreachable, and limits fail closed (503)."""


class JournalUnavailableError(Exception):
    """The journal cannot record the call (503): the disk is full, or the backlog is at its bound."""


class ControlUnreachableError(Exception):
    """Control could not be reached, or its answer could not be used. The last good policy stays in place."""


class ReplicaUnwritableError(Exception):
    """A change could not be written to the replica (disk full, file damaged). The last good policy stays in place."""
