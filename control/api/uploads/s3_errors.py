"""Errors of uploads, as S3 answers them: `<Error><Code>…</Code><Message>…</Message>…</Error>`.

See docs/reference/training.md#uploads.
"""

from collections.abc import Mapping
from xml.sax.saxutils import escape

from control.errors import CheckpointStoreUnavailableError, DatabaseUnavailableError, DomainError
from control.resources.training.errors import (
    InvalidPartError,
    TooManyUploadsError,
    TrainingNotEnabledError,
    UploadHeldError,
    UploadNotFoundError,
    UploadTooLargeError,
)

XML_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


class S3Error(Exception):
    """An upload is refused. `code` is S3's word for it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


TABLE: Mapping[type[DomainError], tuple[int, str]] = {
    UploadNotFoundError: (404, "NoSuchUpload"),
    UploadTooLargeError: (400, "EntityTooLarge"),
    InvalidPartError: (400, "InvalidPart"),
    UploadHeldError: (409, "OperationAborted"),
    TooManyUploadsError: (403, "QuotaExceeded"),
    TrainingNotEnabledError: (403, "AccessDenied"),
    DatabaseUnavailableError: (503, "ServiceUnavailable"),
    CheckpointStoreUnavailableError: (503, "ServiceUnavailable"),
}


def s3_error_of(error: DomainError) -> S3Error:
    """An error class missing from `TABLE` is a bug and raises KeyError."""
    kind = next((kind for kind in type(error).__mro__ if kind in TABLE), type(error))
    return S3Error(*TABLE[kind], error.message)


def error_xml(error: S3Error, resource: str, request_id: str) -> str:
    members = {"Code": error.code, "Message": error.message, "Resource": resource, "RequestId": request_id}
    return f"{XML_HEAD}<Error>{members_xml(members)}</Error>"


def members_xml(members: Mapping[str, str]) -> str:
    """The members as elements."""
    return "".join(f"<{name}>{escape(text)}</{name}>" for name, text in members.items())


def not_implemented(what: str) -> S3Error:
    return S3Error(501, "NotImplemented", f"{what} is not implemented: this place takes uploads of training jobs alone")


def invalid_request(message: str) -> S3Error:
    return S3Error(400, "InvalidRequest", message)
