"""The process that runs asynchronous requests and tells their webhooks.

`app.py` is its composition root. Must not import anything below a `supervisor` folder.
"""
