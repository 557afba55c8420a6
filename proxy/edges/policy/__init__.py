"""The machine's policy replica, as a worker reads it.

Promises synchronous look-ups. Must not answer "not found" for a fault of ours.
"""
