"""What traces and metrics share on their way to the OpenTelemetry collector: its variables, the resource, the session.

See docs/reference/traces.md#settings.
"""
