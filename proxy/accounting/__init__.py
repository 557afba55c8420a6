"""A call's reservations, costs and journal records, and the reading of a journal after a crash.

Pure. Must not touch the disk, Redis or a clock: `edges/journal` and `edges/redis` do.
"""
