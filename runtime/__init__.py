"""What a process of either plane runs on: HTTP server, child processes, private files, setting names, log schema.

Both planes import it; it imports neither, and knows nothing of limits, keys or calls.
"""
