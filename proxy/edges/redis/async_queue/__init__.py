"""The queue of asynchronous requests in Redis: streams with consumer groups, moved by one script per operation.

`queue.lua` describes the keys, and what holds between them.
"""
