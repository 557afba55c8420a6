"""The commands that work over the management API, for operators and their scripts.

They know control by its public API alone and import neither plane. `control/operator/cli.py` adds them to `tollgate`.
"""
