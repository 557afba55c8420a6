"""Sends a process's Prometheus metrics to an OpenTelemetry collector, too, where `TOLLGATE_METRICS` asks for it.

Promises that a collector which is away, slow or full delays nothing and takes bounded memory.
"""
