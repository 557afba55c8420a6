"""Stripe customers by external entity id, from a CSV file."""

import csv
from pathlib import Path

from commands.records.receiver import ReceiverError

_ENTITY = "external_entity_id"
_CUSTOMER = "stripe_customer_id"


def read_customers(path: Path) -> dict[str, str]:
    """Read a CSV file with the columns `external_entity_id` and `stripe_customer_id`. Raises ReceiverError."""
    customers: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file, strict=True):
                entity = (row.get(_ENTITY) or "").strip()
                customer = (row.get(_CUSTOMER) or "").strip()
                if not entity or not customer:
                    raise ReceiverError(f"{path}: a row lacks {_ENTITY} or {_CUSTOMER}: {row}")
                if customers.setdefault(entity, customer) != customer:
                    raise ReceiverError(f"{path}: {entity!r} has two customers, {customers[entity]} and {customer}")
    except OSError as error:
        raise ReceiverError(f"{path}: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise ReceiverError(f"{path}: no CSV file in UTF-8 ({error})") from None
    return customers
