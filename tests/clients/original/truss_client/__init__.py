"""The original's tool `truss` against a running product: every function of its remote client, and every command.

`script.py` runs in an environment of its own (`tests/clients/python/truss.lock`); `run.py` starts the product for it.
"""
