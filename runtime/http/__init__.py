"""The HTTP server below the aiohttp applications of both planes."""
