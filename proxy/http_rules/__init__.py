"""Rules for what passes between caller and upstream: header fields, errors, secrets, the models list.

Pure. Allow-lists: what no rule names is not passed on.
"""
