"""The original's stock SDK against a running product: every method of its generated API, by both kinds of its client.

`script.py` runs in an environment of its own (`tests/clients/python/baseten.lock`); `run.py` starts the product for it.
"""
