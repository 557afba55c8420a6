"""An upstream's invoice: a CSV file with a header."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commands.errors import InvoiceError


@contextmanager
def opened_invoice(path: Path) -> Iterator["csv.DictReader[str]"]:
    """Open the invoice's rows, with `fieldnames` and `line_num`. Raises InvoiceError, also while it is read."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield csv.DictReader(file, strict=True)
    except OSError as error:
        raise InvoiceError(f"{path}: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvoiceError(f"{path}: no CSV file in UTF-8 ({error})") from None
    except InvoiceError as error:
        raise InvoiceError(f"{path}: {error}") from None
