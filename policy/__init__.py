"""What is allowed: the language both planes speak.

Pure: no I/O, no clock, no framework, nothing of ours imported from outside this package.
"""
