"""`tollgate launcher`: starts, watches and stops the replicas of one deployment, on wake hooks and by load.

A program of its own beside the planes. It uses control's public API alone and imports neither plane.
"""
