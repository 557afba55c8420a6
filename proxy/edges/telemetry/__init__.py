"""Metrics and the access log, as a worker records them.

Promises not to wait. Must not let a label or a log line hold a secret.
"""
