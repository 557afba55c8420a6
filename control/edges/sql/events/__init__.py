"""Billing events in the database: ingest, pages, partitions, and the clock that keeps served windows fixed.

Promises each event once, in exactly one window.
"""
