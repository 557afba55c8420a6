"""What the supervisor asks of Redis.

Must not charge a limit of a tenant.
"""
