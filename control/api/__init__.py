"""The operations of the management API, one file per resource: parse, call the resource, render.

Does not decide what is legal (`policy/` and `resources/` do) and imports no edge.
"""
