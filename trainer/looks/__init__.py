"""Looks that the trainer takes now and then: at caches, and at what nodes use."""
