"""Coding agents in headless mode, each a client of `make clients`: a script that runs the agent's own program."""
