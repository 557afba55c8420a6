"""Chat Completions told as Messages, and Messages told as Chat Completions.

Pure. Translates a request in full or refuses it; must never weaken it silently.
"""
