"""Asks launchers to start replicas: posts to deployments' wake hooks.

Promises that a hook that hangs delays no other deployment. Must not decide whose turn it is: the rules do.
"""
