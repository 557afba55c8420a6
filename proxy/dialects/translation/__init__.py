"""Translates between Chat Completions and Messages, requests and answers, in both directions.

Pure. Translates a request in full or refuses it; must never weaken it silently.
"""
