"""`tollgate plan`, `tollgate apply`, `tollgate export`: policy as a YAML file (docs/reference/policy-files.md).

document.py reads the file, reading.py the workspace, planning.py compares them, steps.py puts the changes in order.
"""
