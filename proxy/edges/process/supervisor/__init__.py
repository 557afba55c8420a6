"""Worker processes, as the supervisor starts, replaces and retires them.

Promises that a worker slot's listening socket survives its worker.
"""
