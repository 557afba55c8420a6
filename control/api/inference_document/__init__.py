"""The OpenAPI document of the calls that the proxy serves. `document.py` puts it together; it imports no proxy."""
