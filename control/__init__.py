"""The control plane: the management API. Edits policy, reads the books.

`app.py` is its composition root. `resources/` holds the rules, `api/` HTTP, `edges/` SQL, Redis and webhooks.
"""
