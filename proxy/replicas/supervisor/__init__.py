"""Assignment of this machine's calls to replicas: choice, order, and health of replicas.

Pure bookkeeping for all workers of a machine: the caller passes time and randomness. Must not wait or do I/O.
"""
