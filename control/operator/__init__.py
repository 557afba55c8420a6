"""The `tollgate` command and the commands below it.

Prints and parses; the rules of a resource are in `resources/`.
"""
