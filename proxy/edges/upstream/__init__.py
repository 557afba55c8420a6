"""Upstreams: our HTTP/1.1 client, and the egress rules for every address that is dialled.

Promises that a request is repeated only if the first copy cannot have arrived. Must not follow redirects.
"""
