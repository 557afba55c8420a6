"""Delivers webhook messages to customers' URLs.

Promises at least once, to a checked address. Must not tell what the receiver answered.
"""
