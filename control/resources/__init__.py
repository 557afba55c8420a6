"""What operators manage: the rules of each resource, and how a change is published.

Raises domain errors; `api/` renders them. Must not know HTTP or SQL.
"""
