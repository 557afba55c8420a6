"""Scripted vendors of the three dialects: one neutral content, rendered and checked as each vendor's API would.

`scenarios.py` holds the content, a module per dialect reads its requests and writes its answers, `*_checks.py` refuse
what the real vendor refuses, and `vendor.py` is the behaviour for `ScriptedUpstream`.
"""
