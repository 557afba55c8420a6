"""The basis of a process of either plane: HTTP server, child processes, private files, object stores, settings, logs.

Both planes import it; it imports neither, and knows nothing of limits, keys or calls.
"""
