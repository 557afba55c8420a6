"""Control's metrics and log lines.

Must not let a label or a log line hold a secret.
"""
