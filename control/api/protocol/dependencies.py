"""The key under which a handler finds the parts of its control plane in the application."""

from aiohttp import web

from control.dependencies import Dependencies

DEPENDENCIES = web.AppKey("dependencies", Dependencies)
