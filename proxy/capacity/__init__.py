"""What one worker can take on: calls in flight, memory, parked calls; and the replicas of models it may call.

Pure bookkeeping. The caller passes time and randomness; nothing here waits.
"""
