"""The parts that traces and metrics share on their way to a collector: its variables, the resource, the HTTP session.

See docs/reference/traces.md#settings.
"""
