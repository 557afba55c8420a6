"""Conditions of changes. Values only."""
