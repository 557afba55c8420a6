"""The parts that all operations share: authentication, bodies, cursors, errors, the OpenAPI document.

The models that validate requests are the ones that the document describes. Knows no resource.
"""
