"""Asynchronous requests: their states, what callers may ask, when they are tried again, what webhooks are told.

Pure. An edge keeps the queue itself in Redis.
"""
