"""The data directory and the embedded Redis, which `tollgate up` needs on its machine.

Promises that key files are never overwritten.
"""
