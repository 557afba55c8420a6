"""Rules for all that passes between caller and upstream: header fields, errors without secrets, models' paths and list.

Pure. Allow-lists: what no rule names is not passed on.
"""
