"""Finds what people look for by a part of its name: groups, slugs, keys, requests."""
