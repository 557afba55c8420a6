"""The Chat Completions dialect, with Completions and Embeddings, which only pass.

Pure. Must not import another dialect's folder.
"""
