"""The queue of asynchronous requests in Redis: streams with consumer groups, moved by one script per operation.

Which keys there are, and what holds between them, is told in `queue.lua`.
"""
