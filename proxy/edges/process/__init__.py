"""What connects the proxy's processes: the channel between supervisor and worker, and the log.

Must not carry a secret or an API key.
"""
