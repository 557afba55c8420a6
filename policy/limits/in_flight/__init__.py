"""Calls in flight over all workers, for limits of CONCURRENT_REQUEST.

Must not do I/O or read a clock.
"""
