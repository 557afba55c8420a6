"""Redis as control uses it: hints, throttling, the day's usage.

Must not charge a limit: the proxy's scripts do.
"""
