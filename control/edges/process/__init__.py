"""What `tollgate up` needs of its machine: the data directory and the embedded Redis.

Promises that key files are never overwritten.
"""
