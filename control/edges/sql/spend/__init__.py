"""Spend limits: how far events are counted for them, and which machines may still give events."""
