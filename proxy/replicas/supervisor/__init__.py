"""Which replica each call of this machine gets, in which order, and which replicas are healthy.

Pure bookkeeping for all workers of a machine: the caller passes time and randomness. Must not wait or do I/O.
"""
