"""What callers reach on the proxy, as an OpenAPI document. `document.py` puts it together; it imports no proxy."""
