"""Replicas of platform models, as a worker asks for them. The supervisor assigns them (`supervisor/`).

Promises that a call to a platform model is sent only to a replica that the supervisor assigned to it.
"""
