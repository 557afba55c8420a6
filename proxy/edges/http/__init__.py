"""Callers: the public HTTP/1.1 server.

Promises one `pipeline.handle` per request and a bounded wait for every byte. Must not read a body's meaning.
"""
