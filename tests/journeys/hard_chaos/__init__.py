"""A run under faults that proves HARD spend limits: odd vendors, odd callers, and what is billed in the end.

`run.py` is the program. See docs/reference/money.md#spend-limits.
"""
