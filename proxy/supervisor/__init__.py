"""The supervisor process, one per machine: keeps workers running, policy fresh and events shipped.

`app.py` is its composition root. No inference call passes through it.
"""
