"""The worker process: one event loop, one listening socket, one pipeline.

`app.py` is its composition root. Must not import anything below a `supervisor` folder.
"""
