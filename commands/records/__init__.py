"""The records that the commands and their edges exchange: billing events, a receiver's answers, a forwarder's progress.

The ground floor: no edge imports the command that uses it.
"""
