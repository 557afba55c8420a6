"""Checks which failed transactions are tried again."""

import sqlite3

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from control.edges.sql.database import is_retryable


class DriverError(Exception):
    """An error of a PostgreSQL driver."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
def test_transaction_that_lost_to_another_is_retried(sqlstate: str) -> None:
    assert is_retryable(DBAPIError("UPDATE", {}, DriverError(sqlstate)))


def test_locked_sqlite_database_is_not_waited_for_again() -> None:
    assert not is_retryable(OperationalError("BEGIN IMMEDIATE", {}, sqlite3.OperationalError("database is locked")))
