"""Reads what a provider reports of a call: its tokens, their details, the calls of its own tools.

Pure. What is read here is billed.
"""
