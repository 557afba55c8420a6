"""What the supervisor asks of Redis: whether it is ready to admit calls.

Must not count against a tenant's limits.
"""
