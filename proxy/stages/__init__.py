"""The seven steps of a call, and the way of a direct one: decisions only.

A stage imports no other stage and no edge; `pipeline.py` alone knows their order.
"""
