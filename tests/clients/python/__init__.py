"""The Python clients, a script each: `python -m tests.clients.python.<script>` in the client's own environment."""
