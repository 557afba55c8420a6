"""Databases as the migrations leave them."""

import pytest

from tests.control.conftest import MIGRATED
from tests.postgres_copies import PostgresCopies
from tests.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres_copies(migrated_postgres: PostgresServer) -> PostgresCopies:
    """Copies without the partitions that control creates when it starts: tests here create them, and read plans."""
    return PostgresCopies(migrated_postgres, MIGRATED)
