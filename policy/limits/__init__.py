"""Limits: which ones bind a call, what a call costs against them, and how the counters are laid out.

Promises one meaning for the Lua scripts, the proxy and the management API. Must not read a clock or touch Redis.
"""
