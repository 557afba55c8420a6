"""The control plane: serves the management API, which edits policy and reads billing events and usage.

`app.py` is its composition root. `resources/` holds the rules, `api/` HTTP, `edges/` SQL, Redis and webhooks.
"""
