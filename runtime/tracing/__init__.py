"""OpenTelemetry traces, for both planes. Imported only where `TOLLGATE_TRACES` asks for traces, `settings.py` excepted.

Promises that a collector which is away or slow delays nothing and takes bounded memory.
"""
