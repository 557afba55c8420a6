"""What a worker can carry: calls in flight, held memory, parked calls, circuit breakers.

Pure bookkeeping. The caller brings time and randomness; nothing here waits.
"""
