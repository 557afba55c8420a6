"""Reads and edits large JSON texts without holding the event loop or copying unchanged bytes.

Pure. Accepts what orjson accepts, within bounds; must not know a dialect.
"""
