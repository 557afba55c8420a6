"""The only code of these commands that touches sockets and files."""
