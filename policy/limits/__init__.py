"""Limits: which ones bind a call, what it costs, how the counters are laid out in Redis.

The scripts, the proxy and the management API share this meaning. Must not read a clock or touch Redis.
"""
