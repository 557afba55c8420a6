"""Forms (`multipart/form-data`): read strictly as they arrive, `model` replaced, no other byte changed.

A form that two parsers could read differently is refused.
"""
