"""Keeps the machine's replica of policy: fetches changes from control and writes them.

One writer. Must not apply part of a page.
"""
