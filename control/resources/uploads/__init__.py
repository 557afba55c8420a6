"""Uploads of training jobs: who may upload what, their parts, and when they go."""
