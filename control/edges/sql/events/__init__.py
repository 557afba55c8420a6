"""Billing events in the database: ingest, pages, and the clock that keeps served windows fixed.

Promises each event once, in exactly one window.
"""
