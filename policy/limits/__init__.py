"""Limits: the ones that bind a call, its cost, and the layout of the counters in Redis.

The scripts, the proxy and the management API share this meaning. Must not read a clock or touch Redis.
"""
