"""The data plane: serves inference calls under policy.

Start at `pipeline.py`. Only `edges/` touches sockets, Redis and disk; `worker/` and `supervisor/` are the processes.
"""
