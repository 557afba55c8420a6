"""What is allowed: the language that both planes speak.

Pure: no I/O, no clock, no framework. Imports nothing of ours from outside this package.
"""
