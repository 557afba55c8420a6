"""Queries on prices, and sums over billing events."""
