"""The supervisor's use of Redis: whether it is ready to admit calls, and what dead workers held there.

Must not count against a tenant's limits.
"""
