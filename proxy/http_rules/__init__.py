"""What passes between caller and upstream: header fields, errors without secrets, and the list of models.

Pure. Allow-lists: what no rule names is not passed on.
"""
