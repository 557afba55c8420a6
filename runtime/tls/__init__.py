"""TLS on our own listeners, and between our own parts: certificates that may change, the layer below HTTP, pins."""
