"""`up.json` in the data directory: where the `tollgate up` that serves the directory answers, for commands beside it.

`up` writes it when all parts are ready and removes it when it stops. After a `kill -9` the file stays; the directory's
lock then tells that nobody serves it any more, so no key is sent to whoever took over the port.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from control.edges.process.data_directory import DataDirectory, DataDirectoryError
from runtime.private_files import replace_file

_NAME = "up.json"


class NotRunningError(DataDirectoryError):
    """no `tollgate up` serves this data directory, or it is not ready yet."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: {self.__doc__} Start it, or set TOLLGATE_URL and TOLLGATE_API_KEY")


@dataclass(frozen=True, slots=True)
class UpRecord:
    """The URLs of a running product. `has_own_database`: its database is in the data directory."""

    proxy: str
    control: str
    admin: str
    has_own_database: bool
    cert_file: str | None = None
    """The file of the certificate that proxy and control show; None: they speak plain HTTP."""


def write(directory: DataDirectory, record: UpRecord) -> None:
    replace_file(directory.path / _NAME, json.dumps(asdict(record), indent=2) + "\n")


def remove(directory: DataDirectory) -> None:
    """Remove the record, also after an `up` was killed. Only the holder of the directory's lock may call this."""
    (directory.path / _NAME).unlink(missing_ok=True)


def read(directory: DataDirectory) -> UpRecord:
    """Read the record of the `up` that serves the directory. Raises NotRunningError, DataDirectoryError."""
    path = directory.path / _NAME
    try:
        if not directory.is_served():
            raise NotRunningError(directory.path)
        fields = json.loads(path.read_text())
        urls = (fields["proxy"], fields["control"], fields["admin"])
        return UpRecord(*urls, fields["has_own_database"], fields.get("cert_file"))
    except FileNotFoundError:
        raise NotRunningError(directory.path) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(f"{path} cannot be read ({error}). Run this as the user of `tollgate up`") from None
