"""What a call reserves, costs and leaves in the journal, and how a journal is read after a crash.

Pure. Must not touch the disk, Redis or a clock: `edges/journal` and `edges/redis` do.
"""
