"""API dialects: how a request is sent to a target, how its answer is read, and how its usage is metered.

Pure: bytes in, bytes out. Must not know a host, a credential or a clock.
"""
