"""The `tollgate` command and what it runs.

Prints and parses; the rules of a resource are in `resources/`.
"""
