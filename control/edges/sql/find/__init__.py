"""Rows of a workspace by a part of their names."""
