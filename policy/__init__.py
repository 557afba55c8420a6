"""The rules that both planes share: what callers and operators are allowed.

Pure: no I/O, no clock, no framework. Imports nothing of ours from outside this package.
"""
