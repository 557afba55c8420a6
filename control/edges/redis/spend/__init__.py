"""The spend of trees, as control counts it in Redis: scripts, and their client.

Must not take or end a reservation of a call in flight: the proxy's scripts do.
"""
