"""Keeps the machine's policy replica: fetches changes from control and writes them.

One writer. Must not apply part of a page.
"""
