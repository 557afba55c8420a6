"""Limits as control watches them. Values only."""
