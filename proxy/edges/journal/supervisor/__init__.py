"""Reads journals, ships their events to control, and settles what dead workers left.

Promises that an event stays on disk until control has committed it. Must not change an event.
"""
