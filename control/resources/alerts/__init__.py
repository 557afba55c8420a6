"""Alerts on limits: who watches, by which figures, and what is told."""
