"""A request's body that is sent while it arrives, as the upstream's client sees it."""

from typing import Protocol


class Upload(Protocol):
    """A request's body that is still arriving while it is sent."""

    content_type: str
    length: int | None
    """Size in bytes as sent upstream; None if the caller did not declare it."""
    received_bytes: int
    """How much has arrived."""

    def rename(self, model: str) -> None:
        """Give the upstream this model. Call it before `read`."""
        ...

    async def read(self) -> bytes:
        """The next bytes for the upstream as they arrive; b"" at the end of a valid body.

        Raises what `Incoming.read` raises, and a `RefusalError` for a body that turns out to be wrong.
        """
        ...


class Form(Upload, Protocol):
    """The form of a caller."""

    def forbid_state(self) -> None:
        """Refuse parts that name state in the vendor's account, those that were read already too.

        Raises `MalformedRequestError`; for a part that comes later, `read` does.
        """
        ...
