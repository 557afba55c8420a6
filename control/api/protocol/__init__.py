"""What all operations share: authentication, bodies, cursors, errors, and the OpenAPI description.

Promises that what is described is what is checked. Must not know a resource.
"""
