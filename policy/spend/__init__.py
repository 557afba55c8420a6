"""Limits in currency: what they are, which of them bind a call, and how what is spent is counted."""
