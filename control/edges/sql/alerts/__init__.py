"""Alerts on limits: what was told, which limits have refused calls, which groups are watched."""
