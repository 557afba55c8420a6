"""Connections between the proxy's processes: the channel of supervisor and worker, and the log.

Must not carry a secret or an API key.
"""
