"""Finds groups, slugs, keys and requests by a part of their names."""
