"""Queries of the console."""
