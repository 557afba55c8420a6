"""The fetching of weights."""
