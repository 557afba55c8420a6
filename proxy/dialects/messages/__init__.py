"""The Messages dialect.

Pure. Must not import another dialect's folder.
"""
