"""The machine's metrics and the admin port.

Promises that a dead worker's counts stay in the sums, and that labels stay bounded.
"""
