"""The seven steps of a call: decisions only.

A stage imports no other stage and no edge; `pipeline.py` alone knows their order.
"""
