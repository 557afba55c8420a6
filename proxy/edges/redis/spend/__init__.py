"""Spend limits in Redis, beside the counters: what a call reserves when it is admitted, and its cost at its end."""
