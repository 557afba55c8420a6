"""The capacity of one worker: calls in flight, memory, parked calls.

Pure bookkeeping. The caller passes time and randomness; nothing here waits.
"""
