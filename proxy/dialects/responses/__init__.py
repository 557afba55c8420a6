"""The Responses dialect.

Pure. Must not import another dialect's folder.
"""
