"""Figures of traffic: how they are added, kept and shown."""
