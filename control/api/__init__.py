"""The management API's operations, a file per resource: parse, call, render.

Must not decide what is legal (`policy/`, `resources/` do) or write SQL.
"""
