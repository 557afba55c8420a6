"""Figures of traffic by step and slug."""
