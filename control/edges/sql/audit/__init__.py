"""The audit trail: its queries. `store.py` writes it."""
