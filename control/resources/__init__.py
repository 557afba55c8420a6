"""The rules of each resource that operators manage.

Raises domain errors, which `api/` renders. Calls the queries in `edges/sql`, which publish what they write. Knows
neither HTTP nor SQL: what sends gets a client from `app.py`.
"""
