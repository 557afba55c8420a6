"""What one worker can take on: calls in flight, memory, parked calls.

Pure bookkeeping. The caller passes time and randomness; nothing here waits.
"""
