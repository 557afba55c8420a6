"""Benchmarks: what we claim, measured beside the peers in one run. Programs are pinned to cores; the unit is CPU time.

`run.py` is `make bench`, `soak.py` the second half of `make soak`. How to measure single changes: bench/NOTES.md.
"""
