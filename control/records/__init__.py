"""The records that rules, queries and clients of control exchange: frozen values, identifiers and times as text.

The ground floor: imports `policy` and itself, so that resources and edges both may import it.
"""
