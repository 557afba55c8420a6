"""Failures of commands over the management API. Each message says why and what to check."""


class ManagementError(Exception):
    """The command failed."""


class AwayError(ManagementError):
    """The management API cannot be reached or cannot answer now."""


class RefusedError(ManagementError):
    """The management API refused. `status`: the answer's status; `code`: its error code."""

    def __init__(self, message: str, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class JournalError(ManagementError):
    """The journals cannot be compared."""


class InvoiceError(ManagementError):
    """The invoice cannot be read."""


class NoAccessError(ManagementError):
    """There is no key, and this machine's data directory gives none."""
