"""The only code of the launcher that touches sockets and processes."""
