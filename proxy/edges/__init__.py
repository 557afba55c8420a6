"""The only code of the proxy that touches sockets, Redis, disk and Prometheus: a room per counterpart.

What lies below a `supervisor` folder runs in the supervisor alone; all else runs in the workers, or in both.
"""
