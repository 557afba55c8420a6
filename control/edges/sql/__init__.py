"""The database: schema, migrations, queries and transactions.

Promises the same behaviour on SQLite and PostgreSQL. Must not raise a driver's error to a caller.
"""
