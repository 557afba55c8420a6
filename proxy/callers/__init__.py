"""Decides whether a caller that is known may call now, and from where it calls."""
