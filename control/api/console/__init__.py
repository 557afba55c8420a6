"""The console: `/console`, for browsers.."""
